/* SPDX-License-Identifier: Apache-2.0 */
#include "golden/media.h"

#include "base/mem.h"
#include "io/io.h"
#include <stdio.h>
#include <string.h>

/* Ids of the toy vocabulary, from TOY on; of one that has none of them, from TOY_WITHOUT on. */
enum { BOI, BOA, IMAGE, AUDIO, EOI, EOA, TOY = 512, TOY_WITHOUT = 506 };

static const char *const names[] = {"image0", "image1", "audio0", "audio1"};

static void hold(struct session_medium *m, int by)
{
    struct media_item *item = (struct media_item *)(void *)m;
    item->refs += by;
    assert_true(item->refs >= 0);
}

static struct media_item *add(struct media *m, float *rows, int64_t n, uint32_t name, bool sound)
{
    assert_true(m->n < MEDIA_MOST);
    struct media_item *item = &m->item[m->n++];
    *item = (struct media_item){
        .base = m->base,
        .m = {.n = n, .token = m->base + (sound ? AUDIO : IMAGE), .sound = sound, .rows = rows,
              .hold = hold}};
    for (int i = 0; i < KV_MEDIUM_ID; i++)
        item->m.id[i] = (uint8_t)((name + 1) * 2654435761u >> (i % 4 * 8));
    return item;
}

static bool has(const char *golden, const char *name)
{
    struct err e;
    struct io_file *f;
    GOLDEN_OK(io_open(&f, golden, NULL, &e));
    const bool found = io_tensor_find(f, name) != NULL;
    io_close(f);
    return found;
}

void media_open(struct media *m, const char *golden, int64_t width)
{
    *m = (struct media){.base = golden ? TOY : TOY_WITHOUT};
    for (uint32_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[32];
        int64_t n;
        snprintf(name, sizeof name, "%s.soft", names[i]);
        if (!golden || !has(golden, name)) {
            (void)add(m, NULL, 1, i, i > 1);
            continue;
        }
        float *rows = golden_floats(golden, name, &n);
        assert_int_equal(n % width, 0);
        (void)add(m, rows, n / width, i, i > 1);
    }
}

struct media_item *media_find(struct media *m, const char *name)
{
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i]))
            return m->item[i].m.rows ? &m->item[i] : NULL;
    return NULL;
}

struct media_item *media_add(struct media *m, int64_t n, int64_t width, uint32_t seed, bool sound)
{
    float *rows = mem_calloc((size_t)(n * width), sizeof *rows);
    uint32_t x = seed * 747796405u + 1;
    assert_non_null(rows);
    for (int64_t i = 0; i < n * width; i++) {
        x = x * 1664525u + 1013904223u;
        rows[i] = (float)(x >> 8) / (float)(1 << 23) - 1;
    }
    return add(m, rows, n, 100 + seed, sound);
}

void media_close(struct media *m)
{
    for (int i = 0; i < m->n; i++) {
        union {
            const float *in;
            float *out;
        } rows = {m->item[i].m.rows};
        assert_int_equal(m->item[i].refs, 0);
        mem_free(rows.out);
    }
    m->n = 0;
}

void media_prompt(struct media *m, const char *golden, int number, const char *of,
                  struct media_prompt *out)
{
    char name[32];
    int64_t n_types;
    *out = (struct media_prompt){.n = 0};
    snprintf(name, sizeof name, "p%d.input_ids", number);
    int32_t *ids = golden_ints(golden, name, &out->n);
    snprintf(name, sizeof name, "p%d.types", number);
    int32_t *types = golden_ints(golden, name, &n_types);
    assert_true(out->n <= MEDIA_PROMPT && n_types == out->n);
    memcpy(out->token, ids, (size_t)out->n * sizeof *ids);
    for (int64_t i = 0; i < out->n; i++) {
        if (!types[i] || (i && types[i - 1]))
            continue;
        snprintf(name, sizeof name, "%s%c", *of == 'i' ? "image" : "audio", of[1]);
        of += of[2] ? 3 : 2;
        struct media_item *item = media_find(m, name);
        assert_non_null(item);
        for (int64_t k = 0; k < item->m.n; k++)
            assert_true(types[i + k] && out->token[i + k] == item->m.token);
        out->soft[out->n_soft++] = (struct session_soft){i, &item->m};
    }
    assert_int_equal(*of, 0);
    mem_free(ids);
    mem_free(types);
}

bool media_put(struct media_prompt *p, struct media_item *item)
{
    if (p->n + item->m.n + 2 > MEDIA_PROMPT || p->n_soft == MEDIA_SPANS)
        return false;
    p->token[p->n++] = item->base + (item->m.sound ? BOA : BOI);
    p->soft[p->n_soft++] = (struct session_soft){p->n, &item->m};
    for (int64_t i = 0; i < item->m.n; i++)
        p->token[p->n++] = item->m.token;
    p->token[p->n++] = item->base + (item->m.sound ? EOA : EOI);
    return true;
}
