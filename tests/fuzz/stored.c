/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A matrix of a checkpoint with any of the tensors that may belong to it, in any type and shape,
 * and any words of its configuration: it is loaded, or an error says why not.
 *
 * Input: u8 rows, columns, stack; then for each tensor u8 name (0xff ends), type, axes and as many
 * sizes; the rest is the JSON of quantization_config, and bytes of the tensors.
 */
#define _DEFAULT_SOURCE
#include "base/mem.h"
#include "base/str.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static char path[] = "/dev/shm/ingle-fuzz-XXXXXX.safetensors";
static int fd = -1;
static struct device *device;

static void drop_file(void)
{
    unlink(path);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    fd = mkstemps(path, (int)strlen(".safetensors"));
    if (fd < 0 ||
        device_create(&device, &(struct device_options){.n_threads = 1, .cpu = UINT32_MAX}, NULL))
        abort();
    atexit(drop_file);
    return 0;
}

static const char *const names[] = {"blk.0.x.weight",
                                    "blk.0.x.weight_packed",
                                    "blk.0.x.weight_scale",
                                    "blk.0.x.weight_scale_inv",
                                    "blk.0.x.scale",
                                    "blk.0.x.weight_scale_2",
                                    "blk.0.x.weight_global_scale",
                                    "blk.0.x.weight_zero_point",
                                    "blk.0.x.weight_shape",
                                    "blk.0.x.bias",
                                    "blk.0.x.weight_g_idx",
                                    "blk.0.x.input_scale",
                                    "blk.0.k_scale",
                                    "blk.0.x.0.weight",
                                    "blk.0.x.0.weight_scale",
                                    "blk.0.x.1.weight",
                                    "blk.0.x.1.weight_scale",
                                    "blk.0.x.0.weight_packed",
                                    "blk.0.x.1.weight_packed",
                                    "blk.0.x.qweight"};
static const struct { const char *name; size_t n;
} types[] = {{"F8_E4M3", 1}, {"I8", 1},  {"U8", 1},      {"I32", 4}, {"F32", 4},
             {"BF16", 2},    {"F16", 2}, {"F8_E8M0", 1}, {"I64", 8}};
enum {
    N_NAMES = sizeof names / sizeof *names,
    N_TYPES = sizeof types / sizeof *types,
    MOST = 1 << 16
};

struct input { const uint8_t *at; size_t n; };

static uint8_t next(struct input *in)
{
    if (!in->n)
        return 0xff;
    in->n--;
    return *in->at++;
}

/* The header; the bytes that its tensors have. */
static size_t write_header(struct input *in, struct str *s)
{
    size_t end = 0;
    str_adds(s, "{");
    for (int k = 0; k < 12; k++) {
        const uint8_t name = next(in);
        if (name == 0xff)
            break;
        const uint8_t type = next(in) % N_TYPES, axes = next(in) % 5;
        size_t n = 1;
        str_addf(s, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", k ? "," : "", names[name % N_NAMES],
                 types[type].name);
        for (int i = 0; i < axes; i++) {
            const size_t ne = next(in);
            n = n * ne > MOST ? 0 : n * ne;
            str_addf(s, "%s%zu", i ? "," : "", ne);
        }
        str_addf(s, "],\"data_offsets\":[%zu,%zu]}", end, end + n * types[type].n);
        end += n * types[type].n;
    }
    str_adds(s, "}");
    return end;
}

static void try_matrix(struct io_file *f, int64_t rows, int64_t columns, int64_t stack,
                       const char *json, size_t n)
{
    struct model *m = NULL;
    struct err err = {0};
    const struct device_matrix *w;
    struct json_object *config = NULL, *q = NULL;
    if (n && json_parse(json, n, NULL, &q, NULL) == INGLE_OK) {
        config = json_object_new_object();
        json_object_object_add(config, "quantization_config", q);
    }
    ingle_status s = model_create(&m, f, device, NULL, NULL, &err);
    if (!s)
        s = model_read_scheme(m, config, &err);
    if (!s)
        s = model_matrix(m, "blk.0.x.weight", rows, columns, stack, &w, &err);
    if (!s)
        s = model_check_unused(m, &err);
    if (!s)
        s = model_load(m, &err);
    if (s && !err.msg[0])
        abort();
    model_free(m);
    json_object_put(config);
}

/* The same as rows. */
static void try_rows(struct io_file *f)
{
    struct model *m = NULL;
    struct model_stack *k = NULL;
    struct model_stack_info info;
    struct err err = {0};
    ingle_status s = model_create(&m, f, NULL, NULL, NULL, &err);
    if (!s)
        s = model_stack_open(&k, m, "blk.0.x.weight", &err);
    if (!s) {
        model_stack_info(k, &info);
        const int64_t rows = (int64_t)(info.ne[1] * info.ne[2]), n = rows < 3 ? 1 : 2;
        uint64_t n_bytes = 0;
        bool rounded = false;
        if (!quant_bytes(info.type, info.ne[0], (uint64_t)n, &n_bytes))
            abort();
        void *work = mem_alloc(model_stack_work(k, n) + 1), *to = mem_alloc((size_t)n_bytes + 1);
        for (int64_t r = 0; r + n <= rows && work && to && !s; r += n)
            if (r % (int64_t)info.ne[1] + n <= (int64_t)info.ne[1])
                s = model_stack_rows(k, r, n, work, to, &rounded, &err);
        mem_free(work);
        mem_free(to);
    }
    if (s && !err.msg[0])
        abort();
    model_stack_close(k);
    model_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct input in = {data, n};
    struct io_file *f;
    struct str head;
    str_init(&head);
    const int64_t rows = 1 + next(&in), columns = 1 + next(&in), stack = 1 + next(&in) % 3;
    const size_t n_bytes = write_header(&in, &head);
    const char *json = (const char *)in.at;
    const size_t cut =
        in.n && memchr(json, 0, in.n) ? (size_t)((const char *)memchr(json, 0, in.n) - json) : in.n;
    const uint64_t n_head = head.n;
    uint8_t *bytes = mem_calloc(n_bytes ? n_bytes : 1, 1);
    for (size_t i = 0; bytes && i < n_bytes; i++)
        bytes[i] = in.n > cut ? (uint8_t)json[cut + i % (in.n - cut)] : 0;
    if (!bytes || ftruncate(fd, 0) || pwrite(fd, &n_head, 8, 0) != 8 ||
        pwrite(fd, head.at, head.n, 8) != (ssize_t)head.n ||
        pwrite(fd, bytes, n_bytes, (off_t)(8 + head.n)) != (ssize_t)n_bytes)
        abort();
    if (!io_open(&f, path, NULL, NULL)) {
        try_matrix(f, rows, columns, stack, json, cut);
        try_rows(f);
        io_close(f);
    }
    mem_free(bytes);
    str_release(&head);
    return 0;
}
