/* SPDX-License-Identifier: Apache-2.0 */
/* A file of importance, GGUF or the older form: it is read, or an error says why not. */
#define _DEFAULT_SOURCE
#include "tool/importance.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static char path[] = "/dev/shm/ingle-fuzz-XXXXXX.gguf";
static int fd = -1;

static void drop_file(void)
{
    unlink(path);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    fd = mkstemps(path, (int)strlen(".gguf"));
    if (fd < 0)
        abort();
    atexit(drop_file);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct tool_importance *t;
    struct err err = {0};
    if (ftruncate(fd, 0) || pwrite(fd, data, n, 0) != (ssize_t)n ||
        tool_importance_create(&t, &err))
        abort();
    for (int twice = 0; twice < 2; twice++)
        if (tool_importance_read(t, path, NULL, &err) && !err.msg[0])
            abort();
    tool_importance_free(t);
    return 0;
}
