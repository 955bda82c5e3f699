#include "server/admin/page.h"

#include <string.h>

/* The path counts from the folder that the compiler runs in: the root of the tree. */
#define INCLUDE(name, path)                                            \
    __asm__(".pushsection .rodata\n" #name "_start:\n"                 \
            ".incbin \"server/admin/page/" path "\"\n" #name "_end:\n" \
            ".popsection\n");                                          \
    extern const char name##_start[], name##_end[]

INCLUDE(page_html, "page.html");
INCLUDE(page_style, "page.css");
INCLUDE(page_script, "page.js");
INCLUDE(page_charts, "charts.js");
INCLUDE(page_icon, "icon.svg");
INCLUDE(page_uplot_script, "uplot/uPlot.iife.min.js");
INCLUDE(page_uplot_style, "uplot/uPlot.min.css");
INCLUDE(page_uplot_licence, "uplot/LICENSE");

const char page_policy[] = "default-src 'none'; style-src 'self'; script-src 'self'; "
                           "connect-src 'self'; img-src 'self'; "
                           "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

static const char style[] = "text/css; charset=utf-8",
                  script[] = "text/javascript; charset=utf-8";

static const struct {
    const char *path, *content_type, *start, *end;
} files[] = {
    { "/", "text/html; charset=utf-8", page_html_start, page_html_end },
    { "/page.css", style, page_style_start, page_style_end },
    { "/page.js", script, page_script_start, page_script_end },
    { "/charts.js", script, page_charts_start, page_charts_end },
    { "/icon.svg", "image/svg+xml", page_icon_start, page_icon_end },
    { "/uplot/uPlot.iife.min.js", script, page_uplot_script_start, page_uplot_script_end },
    { "/uplot/uPlot.min.css", style, page_uplot_style_start, page_uplot_style_end },
    { "/uplot/LICENSE", "text/plain; charset=utf-8", page_uplot_licence_start,
      page_uplot_licence_end },
};

bool page_file_at(uint32_t i, struct page_file *ret)
{
    if (i >= COUNT_OF(files))
        return false;
    *ret = (struct page_file){ files[i].path, files[i].content_type, files[i].start,
                               (size_t)(files[i].end - files[i].start) };
    return true;
}

bool page_file_find(const char *path, struct page_file *ret)
{
    struct page_file file;

    for (uint32_t i = 0; page_file_at(i, &file); i++)
        if (strcmp(path, file.path) == 0) {
            *ret = file;
            return true;
        }
    return false;
}
