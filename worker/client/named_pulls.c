#include "worker/client/named_pulls.h"

#include <string.h>

#define UNUSED_MAX 64u /* pulls in a row that no push names: from here on one of so many asks */

uint64_t named_pulls_ask(struct named_pulls *p)
{
    if (p->is_off || (p->n_unused++ >= UNUSED_MAX && p->n_unused % UNUSED_MAX))
        return 0;
    return ++p->n_asked;
}

static bool is_kept(const struct named_pulls *p, const struct request *pull)
{
    return p->n_asked - pull->keep_number < SECTION_PULLS_KEPT;
}

void named_pulls_add(struct named_pulls *p, struct request *pull)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n; i++) {
        if (is_kept(p, p->pulls[i]))
            p->pulls[n++] = p->pulls[i];
        else
            request_free(p->pulls[i]);
    }
    p->n = n;
    if (is_kept(p, pull))
        p->pulls[p->n++] = pull;
    else
        request_free(pull);
}

/* 1 + the place of the section whose keys these are, in the pull; 0: it has none. Tables have the client's numbers. A
 * push has its sections in the order of its pull, so the search begins behind the last one found, at `from`, and of a
 * table that stands there alone no other is compared: hundreds of tables take hundreds of comparisons. */
static uint32_t find_section(const struct request *pull, const struct section *s, uint32_t from)
{
    bool is_here = false;

    for (uint32_t i = 0; i < pull->n_sections; i++) {
        const uint32_t at = (from + i) % pull->n_sections;
        const struct section *have = &pull->sections[at];

        if (have->table_id != s->table_id) {
            if (is_here)
                return 0;
            continue;
        }
        is_here = true;
        if (have->n_keys == s->n_keys && have->key_bytes == s->key_bytes &&
            memcmp(have->keys, s->keys, s->key_bytes) == 0)
            return at + 1;
    }
    return 0;
}

static bool has_keys(const struct section *s)
{
    return s->n_keys > 0 && s->key_bytes > 0;
}

static size_t common_bytes(const struct request *pull, const struct request *push)
{
    size_t n_bytes = 0;
    uint32_t from = 0;

    for (uint32_t i = 0; i < push->n_sections; i++) {
        const struct section *s = &push->sections[i];
        const uint32_t found = has_keys(s) ? find_section(pull, s, from) : 0;

        n_bytes += found ? s->key_bytes : 0;
        from = found ? found : from + 1;
    }
    return n_bytes;
}

/* The one that saves most bytes: a dense table has the same keys in all pulls. */
static const struct request *find_pull(const struct named_pulls *p, const struct request *push)
{
    const struct request *best = NULL;
    size_t best_bytes = 0;

    for (uint32_t i = 0; i < p->n; i++) {
        const size_t n_bytes = is_kept(p, p->pulls[i]) ? common_bytes(p->pulls[i], push) : 0;

        if (n_bytes > best_bytes) {
            best = p->pulls[i];
            best_bytes = n_bytes;
        }
    }
    return best;
}

void named_pulls_name(struct named_pulls *p, const struct request *r, struct push *push)
{
    const struct request *pull = find_pull(p, r);
    uint32_t from = 0;

    if (!pull)
        return;
    p->n_unused = 0;
    push->keys_of = pull->request_id;
    for (uint32_t i = 0; i < r->n_sections; i++) {
        struct section *s = &push->sections[i];

        if (has_keys(s))
            s->keys_at = find_section(pull, &r->sections[i], from);
        from = s->keys_at ? s->keys_at : from + 1;
        if (s->keys_at) {
            s->keys = NULL;
            s->key_bytes = 0;
        }
    }
}

void named_pulls_reset(struct named_pulls *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        request_free(p->pulls[i]);
    *p = (struct named_pulls){ .is_off = p->is_off };
}
