/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damage to the head of a good projector file: whatever it is, opening it ends with encoders or
 * with an error that says why.  The input is a list of (u32 offset, u8 value); the first byte picks
 * the file.  Runs from the source root.
 */
#include "base/file.h"
#include "base/mem.h"
#include "tower/tower.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const paths[] = {"tests/data/vision/vision_e4b/mmproj-BF16.gguf",
                                    "tests/data/vision/vision_12b/mmproj-BF16.gguf",
                                    "tests/data/vision/vision_31b_q8/mmproj-Q8_0.gguf"};
enum { N_PATHS = sizeof paths / sizeof *paths };

struct base { char *good, *now; size_t n, head; };

static struct base read_base(const char *path)
{
    struct base b = {0};
    struct io_file *f;
    if (file_slurp(path, 64 << 20, &b.good, &b.n, NULL) || !(b.now = mem_alloc(b.n)))
        abort();
    memcpy(b.now, b.good, b.n);
    if (io_open_memory(&f, "base", b.good, b.n, NULL, NULL))
        abort();
    b.head = b.n;
    for (size_t i = 0; i < io_n_tensors(f); i++)
        b.head = io_tensor_at(f, i)->offset < b.head ? io_tensor_at(f, i)->offset : b.head;
    io_close(f);
    return b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct base base[N_PATHS];
    static struct device *d;
    struct err err = {0};
    struct io_file *f;
    struct tower *t;
    if (!n)
        return 0;
    if (!d && device_create(&d, &(struct device_options){.n_threads = 1, .cpu = 0}, &err))
        abort();
    struct base *b = &base[data[0] % N_PATHS];
    if (!b->good)
        *b = read_base(paths[data[0] % N_PATHS]);
    for (size_t i = 1; i + 5 <= n; i += 5) {
        uint32_t at;
        memcpy(&at, data + i, sizeof at);
        b->now[at % b->head] = (char)data[i + 4];
    }
    if (!io_open_memory(&f, "fuzzed", b->now, b->n, NULL, &err)) {
        const struct tower_options o = {.device = d, .width = 48, .check = data[0] & 0x80};
        if (!tower_open_file(&t, f, &o, &err))
            tower_close(t);
        else if (!err.msg[0])
            abort();
        io_close(f);
    } else if (!err.msg[0]) {
        abort();
    }
    memcpy(b->now, b->good, b->head);
    return 0;
}
