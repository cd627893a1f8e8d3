/* SPDX-License-Identifier: Apache-2.0 */
/* A safetensors file: whatever the bytes are, the reader ends, and what it accepts can be
 * read to the last byte. */
#define _DEFAULT_SOURCE
#include "io/io.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Memory, not a disk: a thousand files a second are written. */
static char path[] = "/dev/shm/ingle-fuzz-XXXXXX.safetensors";
static int fd = -1;

static void drop_file(void)
{
    unlink(path);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    fd = mkstemps(path, (int)strlen(".safetensors"));
    if (fd < 0)
        abort();
    atexit(drop_file);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct io_file *f;
    struct err err = {0};
    if (ftruncate(fd, 0) || pwrite(fd, data, n, 0) != (ssize_t)n)
        abort();
    if (io_open(&f, path, NULL, &err)) {
        if (!err.status || !err.msg[0])
            abort();
        return 0;
    }
    for (size_t i = 0; i < io_n_tensors(f); i++) {
        const struct io_tensor *t = io_tensor_at(f, i);
        unsigned char last;
        if (io_tensor_find(f, t->name) != t)
            abort();
        if (t->n_bytes && io_read(f, t, t->n_bytes - 1, &last, 1, NULL))
            abort();
        (void)quant_find_bad(t->type, io_mapped(f, t), t->n_bytes / quant_info(t->type)->n_bytes);
    }
    io_close(f);
    return 0;
}
