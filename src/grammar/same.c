/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grammar_same - JSON values that are the same, sets of them, and a map of pointers: all of them in
 * as many steps as the values have parts.
 */
#include "grammar/schema.h"
#include "grammar/schema_value.h"

#include "base/mem.h"
#include <string.h>

static bool is_number(struct json_object *v)
{
    return json_object_is_type(v, json_type_int) || json_object_is_type(v, json_type_double);
}

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

static uint64_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = n;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 0x100000001B3u;
    return mix(h, n);
}

static uint64_t hash_double(double x)
{
    uint64_t bits;
    x += 0.0; /* -0 is 0 */
    memcpy(&bits, &x, sizeof bits);
    return mix(1, bits);
}

/* Members of an object in any order: their hashes are added. */
static uint64_t hash_of(struct grammar_builder *b, struct json_object *v)
{
    uint64_t h = 2;
    if (!grammar_g_step(b, 1))
        return 0;
    switch (json_object_get_type(v)) {
    case json_type_null:
        return 3;
    case json_type_boolean:
        return json_object_get_boolean(v) ? 5 : 7;
    case json_type_int:
    case json_type_double:
        return hash_double(json_object_get_double(v));
    case json_type_string: {
        const size_t n = (size_t)json_object_get_string_len(v);
        (void)grammar_g_step(b, n / 16);
        return hash_bytes(json_object_get_string(v), n);
    }
    case json_type_array:
        for (size_t i = 0; i < json_object_array_length(v); i++)
            h = mix(h, hash_of(b, json_object_array_get_idx(v, i)));
        return h;
    case json_type_object: {
        json_object_object_foreach(v, key, value)
        {
            h += mix(hash_bytes(key, strlen(key)), hash_of(b, value));
        }
        return mix(11, h);
    }
    }
    return h;
}

static bool same_numbers(struct json_object *x, struct json_object *y)
{
    if (json_object_get_type(x) == json_object_get_type(y) && json_object_is_type(x, json_type_int))
        return json_object_equal(x, y) != 0;
    const double a = json_object_get_double(x), b = json_object_get_double(y);
    return a <= b && b <= a;
}

bool grammar_s_same(struct grammar_builder *b, struct json_object *x, struct json_object *y)
{
    if (x == y)
        return true;
    if (!grammar_g_step(b, 1))
        return false;
    if (is_number(x) && is_number(y))
        return same_numbers(x, y);
    if (json_object_get_type(x) != json_object_get_type(y))
        return false;
    if (json_object_is_type(x, json_type_array)) {
        const size_t n = json_object_array_length(x);
        bool same = n == json_object_array_length(y);
        for (size_t i = 0; i < n && same; i++)
            same =
                grammar_s_same(b, json_object_array_get_idx(x, i), json_object_array_get_idx(y, i));
        return same;
    }
    if (json_object_is_type(x, json_type_object)) {
        bool same = json_object_object_length(x) == json_object_object_length(y);
        json_object_object_foreach(x, key, value)
        {
            struct json_object *other = NULL;
            same = same && json_object_object_get_ex(y, key, &other) &&
                   grammar_s_same(b, value, other);
            if (!same)
                return false;
        }
        return same;
    }
    return json_object_equal(x, y) != 0;
}

/* ---- sets ---- */

static struct schema_set_slot *find_slot(struct grammar_builder *b, const struct schema_set *s,
                                         uint64_t hash, struct json_object *v)
{
    size_t at = hash & (s->n_slots - 1);
    while (s->slot[at].used && !(s->slot[at].hash == hash && grammar_s_same(b, s->slot[at].v, v)))
        at = (at + 1) & (s->n_slots - 1);
    return &s->slot[at];
}

static bool set_room(struct grammar_builder *b, struct schema_set *s)
{
    const size_t n = s->n_slots ? 2 * s->n_slots : 16;
    if (2 * (s->n + 1) <= s->n_slots)
        return true;
    struct schema_set_slot *slot = mem_calloc(n, sizeof *slot);
    if (!slot || !grammar_g_step(b, s->n)) {
        if (!slot)
            grammar_g_nomem(b);
        mem_free(slot);
        return false;
    }
    for (size_t i = 0; i < s->n_slots; i++) {
        size_t at = s->slot[i].hash & (n - 1);
        while (s->slot[i].used && slot[at].used)
            at = (at + 1) & (n - 1);
        if (s->slot[i].used)
            slot[at] = s->slot[i];
    }
    mem_free(s->slot);
    s->slot = slot;
    s->n_slots = n;
    return true;
}

bool grammar_s_set_add(struct grammar_builder *b, struct schema_set *s, struct json_object *v)
{
    const uint64_t hash = hash_of(b, v);
    if (!grammar_g_ok(b) || !set_room(b, s))
        return false;
    struct schema_set_slot *at = find_slot(b, s, hash, v);
    if (!grammar_g_ok(b) || at->used)
        return false;
    *at = (struct schema_set_slot){hash, v, true};
    s->n++;
    return true;
}

void grammar_s_set_add_all(struct grammar_builder *b, struct schema_set *s,
                           struct json_object *list)
{
    for (size_t i = 0; i < json_object_array_length(list) && grammar_g_ok(b); i++)
        (void)grammar_s_set_add(b, s, json_object_array_get_idx(list, i));
}

bool grammar_s_set_has(struct grammar_builder *b, const struct schema_set *s, struct json_object *v)
{
    return s->n && find_slot(b, s, hash_of(b, v), v)->used && grammar_g_ok(b);
}

void grammar_s_set_release(struct schema_set *s)
{
    mem_free(s->slot);
    *s = (struct schema_set){0};
}

/* ---- a map ---- */

static size_t place_of(const struct schema_map *m, const void *key)
{
    size_t at = mix(0, (uint64_t)(uintptr_t)key) & (m->n_slots - 1);
    while (m->slot[at].key && m->slot[at].key != key)
        at = (at + 1) & (m->n_slots - 1);
    return at;
}

void *grammar_s_map_get(const struct schema_map *m, const void *key)
{
    return m->n ? m->slot[place_of(m, key)].value : NULL;
}

void grammar_s_map_put(struct grammar_builder *b, struct schema_map *m, const void *key,
                       void *value)
{
    if (2 * (m->n + 1) > m->n_slots) {
        struct schema_map more = {.n = m->n, .n_slots = m->n_slots ? 2 * m->n_slots : 64};
        more.slot = mem_calloc(more.n_slots, sizeof *more.slot);
        if (!more.slot) {
            grammar_g_nomem(b);
            return;
        }
        for (size_t i = 0; i < m->n_slots; i++)
            if (m->slot[i].key)
                more.slot[place_of(&more, m->slot[i].key)] = m->slot[i];
        mem_free(m->slot);
        *m = more;
    }
    struct schema_map_slot *s = &m->slot[place_of(m, key)];
    m->n += !s->key;
    *s = (struct schema_map_slot){key, value};
}

void grammar_s_map_release(struct schema_map *m)
{
    mem_free(m->slot);
    *m = (struct schema_map){0};
}
