/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damage to the head of a good model file: whatever it is, binding and loading end with a
 * model or with an error that says why.  The input is a list of (u32 offset, u8 value); the
 * first byte picks the family.  Runs from the source root.
 */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "family/family.h"
#include "session/session.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const paths[] = {"tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf",
                                    "tests/data/goldens/gemma4_moe/model-F32.gguf"};

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

/* What can be planned must not overflow; nothing is computed. */
static void plan(const struct family *family, const void *self, const struct family_info *info,
                 struct device *d)
{
    struct runner_plan p;
    struct err err = {0};
    const struct runner_options o = {.n_ctx = num_min(info->n_ctx, 1 << 20), .max_rows = 64};
    if (session_runner_plan(family, self, info, d, &o, &p, &err) && !err.msg[0])
        abort();
}

static void try_model(struct device *d, struct io_file *f)
{
    struct model *m = NULL;
    struct err err = {0};
    struct family_info info;
    const char *arch;
    size_t n;
    void *self = NULL;
    if (io_get_str(io_metadata(f), "general.architecture", &arch, &n, NULL))
        return;
    const struct family *family = family_by_arch(arch);
    if (!family)
        return;
    ingle_status s = model_create(&m, f, d, family->alias, NULL, &err);
    if (!s)
        s = family->bind(&self, m, io_metadata(f), &info, &err);
    if (!s)
        s = model_check_unused(m, &err);
    if (!s)
        plan(family, self, &info, d);
    if (!s)
        s = model_load(m, &err);
    if (s && !err.msg[0])
        abort();
    if (self)
        family->free(self);
    model_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct base base[2];
    static struct device *device;
    struct io_file *f;
    if (!device &&
        device_create(&device, &(struct device_options){.n_threads = 1, .cpu = UINT32_MAX}, NULL))
        abort();
    if (n < 1)
        return 0;
    struct base *b = &base[data[0] % 2];
    if (!b->good)
        *b = read_base(paths[data[0] % 2]);
    for (size_t i = 1; i + 5 <= n; i += 5) {
        uint32_t at;
        memcpy(&at, data + i, sizeof at);
        b->now[at % b->head] = (char)data[i + 4];
    }
    if (!io_open_memory(&f, "fuzz", b->now, b->n, NULL, NULL)) {
        try_model(device, f);
        io_close(f);
    }
    memcpy(b->now, b->good, b->head);
    return 0;
}
