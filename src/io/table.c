/* SPDX-License-Identifier: Apache-2.0 */
/* The container as readers fill it: its files, and its tensors by name. */
#include "io/inner.h"
#include "io/table.h"

#include "base/file.h"
#include "base/mem.h"
#include <string.h>
#include <xxhash.h>

ingle_status io_part_new(struct io_file *f, const char *path, struct io_part **out, struct err *err)
{
    if (!mem_grow(&f->part, &f->cap_part, f->n_parts + 1, sizeof *f->part))
        return err_set(err, INGLE_NOMEM, "%s: no memory to open it", path);
    struct io_part *p = &f->part[f->n_parts];
    *p = (struct io_part){.path = mem_strdup(path), .fd = -1};
    if (!p->path)
        return err_set(err, INGLE_NOMEM, "%s: no memory to open it", path);
    f->n_parts++;
    *out = p;
    return INGLE_OK;
}

ingle_status io_part_add(struct io_file *f, const char *path, struct err *err)
{
    struct io_part *p = NULL;
    struct err why;
    ingle_status s = io_part_new(f, path, &p, err);
    if (s)
        return s;
    s = file_open(path, &p->fd, &p->n_bytes, err);
    if (s)
        return s;
    io_part_stat(p);
    s = io_part_other(f, p, err);
    if (s)
        return s;
    if (file_map(p->fd, path, p->n_bytes, &p->map, &why)) {
        p->map = NULL;
        report(f->sink, INGLE_REPORT_WARN, "file", path, "is read instead of mapped: %s", why.msg);
    }
    return INGLE_OK;
}

ingle_status io_tensor_add(struct io_file *f, const struct io_tensor *t, size_t n_name,
                           struct err *err)
{
    struct io_tensor copy = *t;
    if (f->n_tensors >= UINT32_MAX - 1 ||
        !mem_grow(&f->tensor, &f->cap_tensor, f->n_tensors + 1, sizeof *f->tensor))
        return err_set(err, INGLE_NOMEM, "%s: no memory for %zu tensors", f->path,
                       f->n_tensors + 1);
    ingle_status s = io_arena_copy(&f->arena, t->name, n_name, &copy.name, err);
    if (s)
        return s;
    f->tensor[f->n_tensors++] = copy;
    return INGLE_OK;
}

/* The slot that holds name, or the empty one where it belongs. */
static size_t slot_of(const struct io_file *f, const char *name)
{
    size_t i = (size_t)XXH3_64bits_withSeed(name, strlen(name), f->seed) & (f->n_slots - 1);
    while (f->slot[i] && strcmp(f->tensor[f->slot[i] - 1].name, name) != 0)
        i = (i + 1) & (f->n_slots - 1);
    return i;
}

ingle_status io_tensors_index(struct io_file *f, struct err *err)
{
    f->n_slots = 16;
    while (f->n_slots < 2 * f->n_tensors)
        f->n_slots *= 2;
    f->slot = mem_calloc(f->n_slots, sizeof *f->slot);
    if (!f->slot)
        return err_set(err, INGLE_NOMEM, "%s: no memory to find %zu tensors", f->path,
                       f->n_tensors);
    for (size_t i = 0; i < f->n_tensors; i++) {
        const struct io_tensor *t = &f->tensor[i];
        const size_t at = slot_of(f, t->name);
        if (f->slot[at]) {
            const uint32_t other = f->tensor[f->slot[at] - 1].file;
            return err_set(err, INGLE_FORMAT, "%s: tensor '%s' is there twice%s%s",
                           f->part[t->file].path, t->name, other == t->file ? "" : ", also in ",
                           other == t->file ? "" : f->part[other].path);
        }
        f->slot[at] = (uint32_t)i + 1;
    }
    return INGLE_OK;
}

const struct io_tensor *io_tensor_find(const struct io_file *f, const char *name)
{
    const uint32_t hit = f->slot[slot_of(f, name)];
    return hit ? &f->tensor[hit - 1] : NULL;
}
