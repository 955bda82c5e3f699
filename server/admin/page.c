#include "server/admin/page.h"

/* The path counts from the folder that the compiler runs in: the root of the tree. */
__asm__(".pushsection .rodata\n"
        "page_start:\n"
        ".incbin \"server/admin/page.html\"\n"
        "page_end:\n"
        ".popsection\n");

extern const char page_start[], page_end[];

const char *page_text(size_t *ret_bytes)
{
    *ret_bytes = (size_t)(page_end - page_start);
    return page_start;
}
