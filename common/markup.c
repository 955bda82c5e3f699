#include "common/markup.h"

#include <stdbool.h>
#include <string.h>

#define REPLACEMENT 0xfffdu

/* The character at `at`, and how many bytes it has; of bytes that are no UTF-8 the first alone, as U+FFFD. */
static uint32_t decode(const unsigned char *at, size_t *ret_n)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned first = at[0];
    const size_t n = first < 0x80                    ? 1
                     : first >= 0xf0 && first < 0xf8 ? 4
                     : first >= 0xe0 && first < 0xf0 ? 3
                     : first >= 0xc0                 ? 2
                                                     : 0;
    uint32_t code = n > 1 ? first & (0x7fu >> n) : first;

    *ret_n = 1;
    if (n == 0 || first >= 0xf8)
        return REPLACEMENT;
    for (size_t i = 1; i < n; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return REPLACEMENT;
        code = code << 6 | (at[i] & 0x3f);
    }
    if (code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return REPLACEMENT;
    *ret_n = n;
    return code;
}

/* Neither a control character nor one that changes how the text around it runs. */
static bool is_printable(uint32_t code)
{
    return code >= 0x20 && !(code >= 0x7f && code < 0xa0) && code != 0x200e && code != 0x200f &&
           !(code >= 0x2028 && code <= 0x202e) && !(code >= 0x2066 && code <= 0x2069) &&
           code < 0xfff9;
}

void markup_put(FILE *out, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t n;

    for (; *at; at += n) {
        const uint32_t code = decode(at, &n);

        if (code == REPLACEMENT || (!is_printable(code) && code < 0x10000))
            fputs("&#65533;", out);
        else if (code < 0x80 && strchr("<>&\"'", (int)code))
            fprintf(out, "&#%u;", code);
        else
            fwrite(at, 1, n, out);
    }
}
