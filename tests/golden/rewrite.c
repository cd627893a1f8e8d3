/* SPDX-License-Identifier: Apache-2.0 */
#include "golden/rewrite.h"

#include "unit/unit.h"

#include "base/file.h"
#include "base/mem.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { U32 = 4, I32 = 5, STR = 8, ARRAY = 9, ALIGN = 32 };

struct io { const char *at; size_t n, pos; FILE *to; };

static void copy(struct io *f, void *out, size_t n)
{
    assert_true(n <= f->n - f->pos);
    memcpy(out, f->at + f->pos, n);
    f->pos += n;
}

static uint64_t take(struct io *f, size_t n)
{
    uint64_t v = 0;
    copy(f, &v, n);
    return v;
}

static void put(struct io *f, const void *p, size_t n)
{
    assert_int_equal(fwrite(p, 1, n, f->to), n);
}

static void put_name(struct io *f, const char *s)
{
    const uint64_t n = strlen(s);
    put(f, &n, 8);
    put(f, s, n);
}

static void take_name(struct io *f, char out[128])
{
    const uint64_t n = take(f, 8);
    assert_true(n < 128);
    copy(f, out, n);
    out[n] = 0;
}

static size_t size_of(uint32_t type)
{
    static const size_t size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    assert_true(type < sizeof size / sizeof *size);
    return size[type];
}

/* One value of a type, as it is or one less. */
static void value(struct io *f, uint32_t type, bool less)
{
    if (type == ARRAY) {
        const uint32_t elem = (uint32_t)take(f, 4);
        const uint64_t n = take(f, 8);
        put(f, &elem, 4);
        put(f, &n, 8);
        for (uint64_t i = 0; i < n; i++)
            value(f, elem, less);
        return;
    }
    uint64_t n = size_of(type);
    if (type == STR) {
        n = take(f, 8);
        put(f, &n, 8);
    }
    assert_true(n <= f->n - f->pos);
    uint32_t v = 0;
    if (less && (type == U32 || type == I32)) {
        copy(f, &v, 4);
        v--;
        put(f, &v, 4);
        return;
    }
    put(f, f->at + f->pos, n);
    f->pos += n;
}

/* The new name; NULL: it is left out. */
static const char *renamed(const struct rewrite_name *list, const char *name)
{
    for (; list && list->from; list++)
        if (!strcmp(list->from, name))
            return list->to;
    return name;
}

static void keys(struct io *f, uint64_t n, const struct rewrite *r, const char *arch)
{
    const size_t n_arch = strlen(arch);
    for (uint64_t i = 0; i < n; i++) {
        char name[128], full[300];
        take_name(f, name);
        const bool own = !strncmp(name, arch, n_arch) && name[n_arch] == '.';
        const char *rest = own ? renamed(r->key, name + n_arch + 1) : name;
        assert_non_null(rest);
        snprintf(full, sizeof full, "%s%s%s", own ? r->arch ? r->arch : arch : "", own ? "." : "",
                 rest);
        put_name(f, full);
        const uint32_t type = (uint32_t)take(f, 4);
        put(f, &type, 4);
        if (!strcmp(name, "general.architecture") && r->arch) {
            char old[128];
            take_name(f, old);
            put_name(f, r->arch);
        } else {
            value(f, type, r->less_one && !strcmp(rest, r->less_one));
        }
    }
}

/* Names and places of tensors; put only if `write`, else counted.  *end: where the data of those
 * that are kept end at the latest, in bytes after the header; dropped ones after it leave no
 * bytes. */
static uint64_t tensors(struct io *f, uint64_t n, const struct rewrite *r, bool write,
                        uint64_t *end)
{
    uint64_t left = 0, last = 0, at;
    *end = UINT64_MAX;
    for (uint64_t i = 0; i < n; i++) {
        char name[128], place[64];
        take_name(f, name);
        const uint32_t dims = (uint32_t)take(f, 4);
        const size_t bytes = 8 * (size_t)dims + 12;
        assert_true(bytes <= sizeof place);
        copy(f, place, bytes);
        const char *now = renamed(r->tensor, name);
        left += now != NULL;
        memcpy(&at, place + bytes - sizeof at, sizeof at);
        if (now && at >= last) {
            last = at;
            *end = UINT64_MAX;
        } else if (!now && at > last && at < *end) {
            *end = at;
        }
        if (!now || !write)
            continue;
        put_name(f, now);
        put(f, &dims, 4);
        put(f, place, bytes);
    }
    return left;
}

/* The architecture, which is the first key. */
static void architecture(struct io f, char out[128])
{
    char name[128];
    take_name(&f, name);
    assert_string_equal(name, "general.architecture");
    assert_int_equal(take(&f, 4), STR);
    take_name(&f, out);
}

/* Behind the keys, which are not written. */
static void skip_keys(struct io *f, uint64_t n)
{
    FILE *to = f->to;
    f->to = tmpfile();
    assert_non_null(f->to);
    keys(f, n, &(struct rewrite){0}, "?");
    fclose(f->to);
    f->to = to;
}

void rewrite_gguf(const char *from, const char *to, const struct rewrite *r)
{
    char *bytes, arch[128];
    size_t n;
    struct err e;
    if (file_slurp(from, 64 << 20, &bytes, &n, &e))
        fail_msg("%s", e.msg);
    struct io f = {.at = bytes, .n = n, .pos = 8, .to = fopen(to, "wb")};
    assert_non_null(f.to);
    const uint64_t n_tensors = take(&f, 8), n_keys = take(&f, 8);
    architecture(f, arch);
    struct io look = f;
    skip_keys(&look, n_keys);
    uint64_t end;
    const uint64_t left = tensors(&look, n_tensors, r, false, &end);
    put(&f, bytes, 8);
    put(&f, &left, 8);
    put(&f, &n_keys, 8);
    keys(&f, n_keys, r, arch);
    tensors(&f, n_tensors, r, true, &end);
    while (ftell(f.to) % ALIGN)
        put(&f, "", 1);
    f.pos = (f.pos + ALIGN - 1) / ALIGN * ALIGN;
    put(&f, bytes + f.pos, end < n - f.pos ? end : n - f.pos);
    assert_int_equal(fclose(f.to), 0);
    mem_free(bytes);
}
