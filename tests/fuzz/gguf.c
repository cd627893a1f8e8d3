/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF from memory: whatever the bytes are, the reader ends, and what it accepts can be read
 * to the last byte. */
#include "io/io.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_values(const struct io_meta *m)
{
    size_t n;
    for (size_t i = 0; i < io_meta_count(m); i++) {
        const struct io_value *v = io_meta_at(m, i);
        if (io_meta_find(m, v->key) != v)
            abort();
        for (size_t k = 0; v->kind == IO_ARRAY && k <= v->n; k++) {
            const char *s = io_array_str(v, k, &n);
            if ((s && s[n]) || (!s && n))
                abort();
            (void)io_array_u64(v, k);
            (void)io_array_i64(v, k);
            (void)io_array_f64(v, k);
            (void)io_array_bool(v, k);
        }
        uint64_t u;
        double d;
        (void)io_get_u64(m, v->key, 1, 1000, &u, NULL);
        (void)io_get_f64(m, v->key, -1, 1, &d, NULL);
    }
}

static void read_tensor(const struct io_file *f, const struct io_tensor *t)
{
    static float y[256];
    const struct quant_info *q = quant_info(t->type);
    unsigned char last;
    if (io_tensor_find(f, t->name) != t || !q || t->n_bytes < q->n_bytes)
        abort();
    if (io_read(f, t, t->n_bytes - 1, &last, 1, NULL))
        abort();
    (void)quant_find_bad(t->type, io_mapped(f, t), t->n_bytes / q->n_bytes);
    quant_decode(t->type, io_mapped(f, t), y, q->n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct io_file *f;
    struct err err = {0};
    if (io_open_memory(&f, "fuzz", data, n, NULL, &err)) {
        if (!err.status || !err.msg[0])
            abort();
        return 0;
    }
    read_values(io_metadata(f));
    for (size_t i = 0; i < io_n_tensors(f); i++)
        read_tensor(f, io_tensor_at(f, i));
    io_close(f);
    return 0;
}
