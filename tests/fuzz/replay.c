/* main() of a fuzz target where there is no libFuzzer: runs it once on every file that is named, or
 * stands in a folder that is named. A failure names the file that it is about. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "tests/fuzz/harness.h"

static void run_file(const char *path)
{
    struct bytes bytes = { 0 };
    FILE *file = fopen(path, "r");
    size_t n = file ? 1 : 0;

    if (!file) {
        perror(path);
        exit(1);
    }
    while (n) {
        uint8_t *space = bytes_reserve(&bytes, 1 << 16);

        assert(space);
        n = fread(space, 1, 1 << 16, file);
        bytes_commit(&bytes, n);
    }
    fclose(file);
    fprintf(stderr, "%s\n", path);
    LLVMFuzzerTestOneInput(bytes_front(&bytes), bytes_len(&bytes));
    bytes_deinit(&bytes);
}

static unsigned run_folder(const char *path, DIR *dir)
{
    const struct dirent *entry;
    char file[1024];
    unsigned n = 0;

    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        run_file(file);
        n++;
    }
    closedir(dir);
    return n;
}

int main(int argc, char **argv)
{
    unsigned n = 0;

    LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);

        if (dir) {
            n += run_folder(argv[i], dir);
        } else {
            run_file(argv[i]);
            n++;
        }
    }
    printf("%u inputs\n", n);
    return 0;
}
