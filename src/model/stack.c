/* SPDX-License-Identifier: Apache-2.0 */
/* stack - rows of a file's matrices for tools: as model_matrix() binds them, but nothing is
 * packed. */
#include "base/mem.h"
#include "base/num.h"
#include "model/load.h"
#include "model/parts.h"
#include <stdio.h>
#include <string.h>

enum { MOST_GAP = 1024 }; /* experts that are looked for after one that is missing */

struct model_stack {
    struct model *m;
    struct source *part;
    int64_t n_parts;
    struct layout l;
    uint64_t ne[3];
    uint64_t stored_bytes, row_bytes; /* of a row: in the file, as it is given */
    float *factor;
    bool scaled; /* a factor is not 1 */
};

size_t model_n_names(const struct model *m)
{
    return m->n_entries;
}

const char *model_name_at(const struct model *m, size_t i, const struct io_tensor **t, bool *bound)
{
    *t = m->entry[i].t;
    *bound = m->entry[i].bound;
    return m->entry[i].name;
}

const char *model_matrix_name(const struct model *m, const struct device_matrix *w)
{
    const struct io_tensor *t = NULL;
    for (size_t i = 0; i < m->n_matrices && !t; i++)
        t = m->matrix[i].m == w ? m->matrix[i].part[0].t : NULL;
    for (size_t i = 0; t && i < m->n_entries; i++)
        if (m->entry[i].t == t)
            return m->entry[i].name;
    return NULL;
}

static struct entry *member(const struct model *m, const char *base, uint64_t i)
{
    static const char *const ends[] = {".weight", ".weight_packed"};
    char name[NAME_MAX_BYTES + 48];
    struct entry *e = NULL;
    for (size_t k = 0; k < 2 && !e; k++) {
        snprintf(name, sizeof name, "%s.%llu%s", base, (unsigned long long)i, ends[k]);
        e = model_entry(m, name);
    }
    return e;
}

/* Columns of the values whose codes are in t. */
static uint64_t columns(const struct model *m, const struct entry *codes)
{
    const struct io_tensor *t = codes->t;
    char base[NAME_MAX_BYTES], name[NAME_MAX_BYTES + 16];
    const size_t n = strlen(codes->name), k = strlen(".weight_packed");
    const bool packed = n > k && strcmp(codes->name + n - k, ".weight_packed") == 0;
    snprintf(base, sizeof base, "%.*s", (int)(packed ? n - k : n > 7 ? n - 7 : n), codes->name);
    if (t->type == QUANT_U8)
        return 2 * t->ne[0];
    if (t->type == QUANT_I32 && packed) {
        int32_t shape[2];
        snprintf(name, sizeof name, "%s.weight_shape", base);
        const struct entry *e = model_entry(m, name);
        if (e && e->t->n_dims == 1 && e->t->ne[0] == 2) {
            int64_t wide[2];
            if (e->t->type == QUANT_I64 && !io_read(m->file, e->t, 0, wide, sizeof wide, NULL) &&
                wide[1] > 0)
                return (uint64_t)wide[1];
            if (e->t->type == QUANT_I32 && !io_read(m->file, e->t, 0, shape, sizeof shape, NULL) &&
                shape[1] > 0)
                return (uint64_t)shape[1];
        }
        return 8 * t->ne[0];
    }
    if (t->type != QUANT_I8)
        return t->ne[0];
    /* whole numbers, or two FP4 codes a byte: those have exponents as scales */
    static const char *const scales[] = {".scale", ".weight_scale", ".weight_scale_inv"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s%s", base, scales[i]);
        const struct entry *e = model_entry(m, name);
        if (e && (e->t->type == QUANT_E8M0 || e->t->type == QUANT_U8))
            return 2 * t->ne[0];
    }
    return t->ne[0];
}

static ingle_status find_shape(struct model_stack *s, const char *name, struct err *err)
{
    char base[NAME_MAX_BYTES], packed[NAME_MAX_BYTES + 16];
    const struct entry *e = model_entry(s->m, name);
    const bool named = model_base_name(name, base);
    snprintf(packed, sizeof packed, "%s.weight_packed", named ? base : "");
    e = e || !named ? e : model_entry(s->m, packed);
    if (!e && named) {
        uint64_t n = 0;
        while (member(s->m, base, n))
            n++;
        for (uint64_t k = n + 1; k < n + MOST_GAP; k++)
            if (member(s->m, base, k))
                return err_set(
                    err, INGLE_FORMAT,
                    "'%s': tensor '%s.%llu.weight' is missing, but that of expert %llu is there",
                    io_path(s->m->file), base, (unsigned long long)n, (unsigned long long)k);
        e = n ? member(s->m, base, 0) : NULL;
        s->ne[2] = n;
    }
    if (!e)
        return err_set(err, INGLE_FORMAT, "'%s': tensor '%s' is missing", io_path(s->m->file),
                       name);
    const struct io_tensor *t = e->t;
    const bool many = s->ne[2] > 0;
    if (t->n_dims > (many ? 2 : 3))
        return err_set(err, INGLE_UNSUP, "'%s': tensor '%s' has %u axes, the limit is %d",
                       io_path(s->m->file), t->name, t->n_dims, many ? 2 : 3);
    s->ne[0] = columns(s->m, e);
    s->ne[1] = t->n_dims > 1 ? t->ne[1] : 1;
    s->ne[2] = many ? s->ne[2] : t->n_dims > 2 ? t->ne[2] : 1;
    if (!s->ne[0] || !s->ne[1] || !s->ne[2])
        return err_set(err, INGLE_FORMAT, "'%s': tensor '%s' of %llu x %llu x %llu has no elements",
                       io_path(s->m->file), t->name, (unsigned long long)s->ne[0],
                       (unsigned long long)s->ne[1], (unsigned long long)s->ne[2]);
    return INGLE_OK;
}

/* A stack of one is a stack for model_stored() only under the name of its matrix. */
static ingle_status find_rows(struct model_stack *s, const char *name, struct err *err)
{
    char base[NAME_MAX_BYTES], one[NAME_MAX_BYTES + 24];
    snprintf(one, sizeof one, "%s", name);
    if (s->ne[2] == 1 && model_base_name(name, base) && !model_entry(s->m, name) &&
        member(s->m, base, 0))
        snprintf(one, sizeof one, "%s.0.weight", base);
    return model_stored(s->m, one, s->ne, &s->part, &s->n_parts, &s->l, s->factor, err);
}

ingle_status model_stack_open(struct model_stack **out, struct model *m, const char *name,
                              struct err *err)
{
    struct model_stack *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for tensor '%s'", name);
    s->m = m;
    ingle_status st = find_shape(s, name, err);
    if (!st && !(s->factor = mem_calloc((size_t)s->ne[2], sizeof *s->factor)))
        st = err_set(err, INGLE_NOMEM, "no memory for tensor '%s'", name);
    if (!st)
        st = find_rows(s, name, err);
    for (uint64_t i = 0; !st && i < s->ne[2]; i++)
        s->scaled = s->scaled || s->factor[i] < 1 || s->factor[i] > 1;
    uint64_t n = 0;
    if (!st && !quant_bytes(s->l.type, s->ne[0], 1, &n))
        st = err_set(
            err, INGLE_FORMAT, "'%s': tensor '%s': rows of %llu elements are no whole blocks of %s",
            io_path(m->file), name, (unsigned long long)s->ne[0], quant_info(s->l.type)->name);
    s->row_bytes = n;
    s->stored_bytes = s->l.from == AS_STORED ? n : (uint64_t)s->l.row_bytes;
    if (st)
        model_stack_close(s);
    else
        *out = s;
    return st;
}

void model_stack_close(struct model_stack *s)
{
    if (!s)
        return;
    mem_free(s->part);
    mem_free(s->factor);
    mem_free(s);
}

void model_stack_info(const struct model_stack *s, struct model_stack_info *out)
{
    *out = (struct model_stack_info){s->l.type,
                                     {s->ne[0], s->ne[1], s->ne[2]},
                                     s->scaled ? s->factor : NULL,
                                     s->l.from != AS_STORED};
}

static size_t aligned(size_t n)
{
    return (n + 63) / 64 * 64;
}

size_t model_stack_work(const struct model_stack *s, int64_t n)
{
    size_t most = 0;
    if (s->l.from == AS_STORED)
        return 0;
    for (int64_t i = 0; i < s->n_parts; i++) {
        const size_t one = model_convert_bytes(&s->part[i], &s->l, n);
        most = one > most ? one : most;
    }
    return aligned((size_t)n * s->stored_bytes) + most;
}

ingle_status model_stack_rows(const struct model_stack *s, int64_t row, int64_t n, void *work,
                              void *to, bool *rounded, struct err *err)
{
    const int64_t rows = (int64_t)s->ne[1], index = row / rows, row0 = row % rows;
    const struct source *p = &s->part[s->n_parts > 1 ? index : 0];
    const int64_t of_part = s->n_parts > 1 ? 0 : index;
    const uint64_t at = (uint64_t)(of_part * rows + row0) * s->stored_bytes;
    if (n > rows - row0)
        return err_set(err, INGLE_ARG,
                       "'%s': %lld rows of '%s' from row %lld on are not of one matrix",
                       io_path(s->m->file), (long long)n, p->t->name, (long long)row);
    const bool plain = s->l.from == AS_STORED;
    const ingle_status st =
        io_read(s->m->file, p->t, at, plain ? to : work, (size_t)n * s->stored_bytes, err);
    if (st || plain)
        return st;
    struct convert c = {s->m->file, p, &s->l, rows, of_part, row0, n, s->row_bytes, false};
    const ingle_status done =
        model_convert(&c, work, (char *)work + aligned((size_t)n * s->stored_bytes), to, err);
    *rounded = *rounded || c.rounded;
    return done;
}
