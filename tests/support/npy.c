#include "tests/support/npy.h"
#define NPY_LINE_MAX 65536u

static const char *npy_root(void)
{
    const char *root = getenv("PS_GOLDEN");

    return root ? root : "build/golden";
}

static void npy_path(char *dst, size_t cap, const char *case_name, const char *file,
                     const char *ext)
{
    snprintf(dst, cap, "%s/%s/%s%s", npy_root(), case_name, file, ext);
}

/* Before anything is allocated: a test that is skipped does not come back. */
static void npy_need(void)
{
    const char *ci = getenv("CI");

    if (access(npy_root(), F_OK) == 0 || (ci && ci[0]))
        return;
    print_message(
        "skipped: %s is not there: `make golden` unpacks it, or PS_GOLDEN says where it is\n",
        npy_root());
    skip();
}

void npy_free(struct npy *a)
{
    free(a->bytes);
    *a = (struct npy){ 0 };
}

/* Reads 'shape': (2, 3, ) into dims; the header text is NUL-terminated. */
static bool npy_shape(struct npy *a, const char *header)
{
    const char *s = strstr(header, "'shape': (");
    char *end;

    if (!s)
        return false;
    a->n = 1;
    for (s += strlen("'shape': ("); *s && *s != ')'; s = end) {
        long long dim = strtoll(s, &end, 10);

        if (end == s) {
            end++;
            continue;
        }
        if (a->n_dims == NPY_DIMS_MAX || dim < 0)
            return false;
        a->dims[a->n_dims++] = dim;
        a->n *= dim;
    }
    return true;
}

static bool npy_read(struct npy *a, FILE *f)
{
    unsigned char lead[10];
    char header[4096];
    size_t header_bytes, item_bytes;

    if (fread(lead, 1, sizeof lead, f) != sizeof lead ||
        memcmp(lead, "\x93NUMPY\x01\x00", 8) != 0)
        return false;
    header_bytes = lead[8] | (size_t)lead[9] << 8;
    if (header_bytes >= sizeof header || fread(header, 1, header_bytes, f) != header_bytes)
        return false;
    header[header_bytes] = 0;
    if (strstr(header, "'descr': '<f4'"))
        a->type = 'f';
    else if (strstr(header, "'descr': '<i8'"))
        a->type = 'i';
    else
        return false;
    if (!strstr(header, "'fortran_order': False") || !npy_shape(a, header))
        return false;
    item_bytes = a->type == 'f' ? 4 : 8;
    a->bytes = malloc((size_t)a->n * item_bytes + 1);
    return a->bytes && fread(a->bytes, item_bytes, (size_t)a->n, f) == (size_t)a->n;
}

struct npy npy_load(const char *case_name, const char *name)
{
    struct npy a = { 0 };
    char path[1024];
    bool ok;
    FILE *f;

    npy_need();
    npy_path(path, sizeof path, case_name, name, ".npy");
    f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s: `make golden` unpacks the vectors", path);
    ok = npy_read(&a, f);
    fclose(f);
    if (!ok)
        fail_msg("%s: not a whole .npy of version 1.0 with <f4 or <i8", path);
    return a;
}

/* What stands behind "KIND NAME " in the manifest, in `out`; false if there is no such line. */
static bool npy_manifest(const char *case_name, const char *kind, const char *name, char *out,
                         size_t cap)
{
    char path[1024], word[32], key[128], *line;
    bool found = false;
    int at = 0;
    FILE *f;

    npy_need();
    npy_path(path, sizeof path, case_name, "manifest", ".txt");
    line = malloc(NPY_LINE_MAX);
    f = fopen(path, "r");
    if (!f || !line)
        fail_msg("cannot open %s: `make golden` unpacks the vectors", path);
    while (!found && fgets(line, NPY_LINE_MAX, f)) {
        found = sscanf(line, "%31s %127s %n", word, key, &at) == 2 && !strcmp(word, kind) &&
                !strcmp(key, name);
        if (found)
            snprintf(out, cap, "%s", line + at);
    }
    fclose(f);
    free(line);
    out[found ? strcspn(out, "\n") : 0] = 0;
    return found;
}

bool npy_has(const char *case_name, const char *kind, const char *name)
{
    char text[8];

    return npy_manifest(case_name, kind, name, text, sizeof text);
}

void npy_param_text(const char *case_name, const char *name, char *out, size_t cap)
{
    if (!npy_manifest(case_name, "param", name, out, cap))
        fail_msg("%s: no param %s", case_name, name);
}

double npy_param(const char *case_name, const char *name)
{
    char text[256], *end;
    double value;

    npy_param_text(case_name, name, text, sizeof text);
    value = strtod(text, &end);
    if (end == text)
        fail_msg("%s: param %s is no number: %s", case_name, name, text);
    return value;
}

size_t npy_list(const char *case_name, const char *name, double *values, size_t cap)
{
    char *text = malloc(NPY_LINE_MAX), *s, *end;
    size_t n = 0, want;

    if (!text || !npy_manifest(case_name, "list", name, text, NPY_LINE_MAX))
        fail_msg("%s: no list %s", case_name, name);
    want = strtoul(text, &s, 10);
    for (; n < cap && n < want; n++, s = end) {
        values[n] = strtod(s, &end);
        if (end == s)
            break;
    }
    free(text);
    if (n != want)
        fail_msg("%s: list %s has %zu numbers, %zu could be read", case_name, name, want, n);
    return n;
}

static void npy_tolerance(const char *case_name, const char *name, double *ret_atol,
                          double *ret_rtol)
{
    char line[256], type[8], role[16];

    if (!npy_manifest(case_name, "array", name, line, sizeof line) ||
        sscanf(line, "%7s %15s %lf %lf", type, role, ret_atol, ret_rtol) != 4)
        fail_msg("%s: no array %s in the manifest", case_name, name);
    if (strcmp(role, "expect") != 0)
        fail_msg("%s/%s is %s, not an expected array", case_name, name, role);
}

/* Share of the tolerance that `got` uses; above 1 it fails. */
static double npy_share(double got, double want, double atol, double rtol)
{
    double tolerance = atol + rtol * (want < 0 ? -want : want);
    double off = got < want ? want - got : got - want;

    if (got == want)
        return 0;
    return off <= tolerance              ? off / tolerance
           : tolerance > 0 && off == off ? off / tolerance
                                         : 1e9;
}

double npy_check(const char *case_name, const char *name, const void *got, int64_t off,
                 int64_t n)
{
    struct npy want = npy_load(case_name, name);
    double atol = 0, rtol = 0, worst = 0, x = 0, y = 0;
    int64_t worst_i = 0;

    npy_tolerance(case_name, name, &atol, &rtol);
    if (n < 0)
        n = want.n - off;
    if (off < 0 || off + n > want.n)
        fail_msg("%s/%s has %lld elements, asked for [%lld, %lld)", case_name, name,
                 (long long)want.n, (long long)off, (long long)(off + n));
    for (int64_t i = 0; i < n; i++) {
        double share;

        if (want.type == 'f')
            share = npy_share(((const float *)got)[i], want.f[off + i], atol, rtol);
        else
            share = ((const int64_t *)got)[i] == want.i[off + i] ? 0 : 1e9;
        if (share > worst) {
            worst = share;
            worst_i = i;
        }
    }
    if (worst > 1 && want.type == 'f') {
        x = ((const float *)got)[worst_i];
        y = want.f[off + worst_i];
        fail_msg("%s/%s[%lld]: got %.9g, want %.9g: %.3g x the tolerance (atol %g rtol %g)",
                 case_name, name, (long long)(off + worst_i), x, y, worst, atol, rtol);
    } else if (worst > 1) {
        fail_msg("%s/%s[%lld]: got %lld, want %lld", case_name, name,
                 (long long)(off + worst_i), (long long)((const int64_t *)got)[worst_i],
                 (long long)want.i[off + worst_i]);
    }
    npy_free(&want);
    return worst;
}
