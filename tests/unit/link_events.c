/* SPDX-License-Identifier: Apache-2.0 */
/* A subscriber in each form holds the prefixes that are there: after random changes, a gap with a
 * replay, and a restart. */
#include "unit/unit.h"

#include "link/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum { DEPTH = 5, WIDTH = 3, PATHS = 1 << (2 * DEPTH), LIVE = 40, NAMES = 1 << 16 };

/* ---- MessagePack ---- */

struct reader {
    const uint8_t *at, *end;
};

static uint64_t take(struct reader *r, int n)
{
    uint64_t v = 0;
    assert_true(r->end - r->at >= n);
    while (n-- > 0)
        v = v << 8 | *r->at++;
    return v;
}

static size_t take_count(struct reader *r, uint8_t small, uint8_t two)
{
    const uint8_t head = (uint8_t)take(r, 1);
    if ((head & 0xF0) == small)
        return head & 15;
    assert_true(head == two || head == two + 1);
    return (size_t)take(r, head == two ? 2 : 4);
}

static uint64_t take_uint(struct reader *r)
{
    const uint8_t head = (uint8_t)take(r, 1);
    if (head < 0x80)
        return head;
    assert_in_range(head, 0xCC, 0xCF);
    return take(r, 1 << (head - 0xCC));
}

static bool take_nil(struct reader *r)
{
    if (*r->at != 0xC0)
        return false;
    r->at++;
    return true;
}

static void take_text(struct reader *r, char out[64])
{
    const uint8_t head = (uint8_t)take(r, 1);
    const size_t n = (head & 0xE0) == 0xA0 ? head & 31 : (size_t)take(r, 1);
    assert_true(n < 64 && (size_t)(r->end - r->at) >= n);
    memcpy(out, r->at, n);
    out[n] = 0;
    r->at += n;
}

/* ---- the subscriber ---- */

/* A path of blocks is a number with two bits a block, from 1 on. */
struct subscriber {
    void *context, *socket;
    char replay[128];
    bool array;
    uint64_t next; /* batch */
    int count[LINK_MEDIA][PATHS];
    uint64_t name[NAMES];
    int path[NAMES];
    size_t n_names;
};

static int path_of(const struct subscriber *s, uint64_t name)
{
    for (size_t i = s->n_names; i-- > 0;)
        if (s->name[i] == name)
            return s->path[i];
    fail();
    return 0;
}

static void key(const struct subscriber *s, struct reader *r, const char *want)
{
    char text[64];
    if (s->array)
        return;
    take_text(r, text);
    assert_string_equal(text, want);
}

static void take_hashes(const struct subscriber *s, struct reader *r, uint64_t *name, size_t *n)
{
    key(s, r, "block_hashes");
    *n = take_count(r, 0x90, 0xDC);
    assert_in_range(*n, 1, DEPTH);
    for (size_t i = 0; i < *n; i++)
        name[i] = take_uint(r);
}

static enum link_medium take_medium(const struct subscriber *s, struct reader *r)
{
    char text[64];
    key(s, r, "medium");
    take_text(r, text);
    assert_true(strcmp(text, "GPU") == 0 || strcmp(text, "STORAGE") == 0);
    return text[0] == 'G' ? LINK_GPU : LINK_STORAGE;
}

static void take_stored(struct subscriber *s, struct reader *r, size_t n_members)
{
    uint64_t name[DEPTH];
    size_t n, n_tokens;
    int32_t token[DEPTH] = {0};
    char text[64];
    take_hashes(s, r, name, &n);
    key(s, r, "parent_block_hash");
    const bool first = take_nil(r);
    int path = first ? 1 : path_of(s, take_uint(r));
    key(s, r, "token_ids");
    n_tokens = take_count(r, 0x90, 0xDC);
    assert_int_equal(n_tokens, n * LINK_BLOCK);
    for (size_t i = 0; i < n_tokens; i++)
        token[i / LINK_BLOCK] = (int32_t)take_uint(r);
    key(s, r, "block_size");
    assert_int_equal(take_uint(r), LINK_BLOCK);
    key(s, r, "lora_id");
    assert_true(take_nil(r));
    const enum link_medium medium = take_medium(s, r);
    key(s, r, "lora_name");
    assert_true(take_nil(r));
    if (s->array ? !take_nil(r) : n_members == 11) {
        key(s, r, "extra_keys");
        assert_true(first);
        assert_int_equal(take_count(r, 0x90, 0xDC), n);
        assert_int_equal(take_count(r, 0x90, 0xDC), 1);
        take_text(r, text);
        assert_string_equal(text, "ann");
        for (size_t i = 1; i < n; i++)
            assert_true(take_nil(r));
    }
    key(s, r, "group_idx");
    assert_int_equal(take_uint(r), 0);
    key(s, r, "kv_cache_spec_kind");
    take_text(r, text);
    assert_string_equal(text, "full_attention");
    if (s->array)
        assert_true(take_nil(r));
    for (size_t i = 0; i < n; i++) {
        path = path << 2 | token[i];
        assert_true(path < PATHS && s->n_names < NAMES);
        assert_int_equal(s->count[medium][path]++, 0); /* each copy is told once */
        s->name[s->n_names] = name[i];
        s->path[s->n_names++] = path;
    }
}

static void take_removed(struct subscriber *s, struct reader *r)
{
    uint64_t name[DEPTH];
    size_t n;
    take_hashes(s, r, name, &n);
    const enum link_medium medium = take_medium(s, r);
    key(s, r, "group_idx");
    assert_int_equal(take_uint(r), 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(s->count[medium][path_of(s, name[i])]--, 1);
}

static void take_batch(struct subscriber *s, const void *at, size_t n)
{
    struct reader r = {at, (const uint8_t *)at + n};
    char type[64];
    assert_int_equal(take_count(&r, 0x90, 0xDC), 3);
    assert_int_equal(take(&r, 1), 0xCB);
    (void)take(&r, 8);
    for (size_t n_events = take_count(&r, 0x90, 0xDC); n_events-- > 0;) {
        const size_t members = take_count(&r, s->array ? 0x90 : 0x80, 0xDC);
        key(s, &r, "type");
        take_text(&r, type);
        if (strcmp(type, "BlockStored") == 0)
            take_stored(s, &r, members);
        else if (strcmp(type, "BlockRemoved") == 0)
            take_removed(s, &r);
        else
            memset(s->count, 0, sizeof s->count);
    }
    assert_int_equal(take_uint(&r), 0);
    assert_ptr_equal(r.at, r.end);
}

/* A message of three frames; false: there is none. */
static bool receive(void *socket, const char *topic, uint64_t *number, zmq_msg_t *payload)
{
    char first[64];
    uint8_t bytes[8] = {0};
    zmq_pollitem_t item = {socket, 0, ZMQ_POLLIN, 0};
    if (zmq_poll(&item, 1, 300) <= 0)
        return false;
    const int n = zmq_recv(socket, first, sizeof first, 0);
    assert_int_equal(n, strlen(topic));
    assert_memory_equal(first, topic, strlen(topic));
    assert_int_equal(zmq_recv(socket, bytes, sizeof bytes, 0), 8);
    *number = 0;
    for (int i = 0; i < 8; i++)
        *number = *number << 8 | bytes[i];
    zmq_msg_init(payload);
    assert_true(zmq_msg_recv(payload, socket, 0) >= 0);
    return true;
}

static void ask_again(struct subscriber *s)
{
    void *q = zmq_socket(s->context, ZMQ_DEALER);
    const int none = 0;
    uint8_t from[8];
    uint64_t number;
    zmq_msg_t m;
    for (int i = 0; i < 8; i++)
        from[i] = (uint8_t)(s->next >> (56 - 8 * i));
    (void)zmq_setsockopt(q, ZMQ_LINGER, &none, sizeof none);
    assert_int_equal(zmq_connect(q, s->replay), 0);
    assert_true(zmq_send(q, "", 0, ZMQ_SNDMORE) == 0 && zmq_send(q, from, 8, 0) == 8);
    for (;;) {
        while (!receive(q, "", &number, &m))
            ;
        if (number == UINT64_MAX)
            break;
        assert_int_equal(number, s->next++);
        take_batch(s, zmq_msg_data(&m), zmq_msg_size(&m));
        zmq_msg_close(&m);
    }
    assert_int_equal(zmq_msg_size(&m), 0);
    zmq_msg_close(&m);
    zmq_close(q);
}

/* Until batch `end`; lose: of a hundred so many do not arrive. */
static void follow(struct subscriber *s, uint64_t end, int lose)
{
    uint64_t number;
    zmq_msg_t m;
    while (s->next < end) {
        if (!receive(s->socket, "kv@a@b", &number, &m)) {
            ask_again(s);
            continue;
        }
        if (number == 0)
            s->next = 0; /* a new publisher */
        if (rand() % 100 >= lose && number > s->next) {
            ask_again(s);
        } else if (number == s->next && rand() % 100 >= lose) {
            take_batch(s, zmq_msg_data(&m), zmq_msg_size(&m));
            s->next++;
        }
        zmq_msg_close(&m);
    }
}

/* ---- what is there ---- */

struct prefix {
    enum link_medium medium;
    int n;
    int32_t token[(DEPTH - 1) * LINK_BLOCK + 7];
    uint64_t name;
};

static void random_prefix(struct prefix *p)
{
    const int blocks = rand() % DEPTH;
    p->medium = (enum link_medium)(rand() % LINK_MEDIA);
    p->n = blocks * LINK_BLOCK + rand() % 7;
    int32_t symbol = 0;
    for (int i = 0; i < p->n; i++) {
        if (i % LINK_BLOCK == 0)
            symbol = rand() % WIDTH;
        p->token[i] = symbol;
    }
}

static void compare(const struct subscriber *s, const struct prefix *p, int n)
{
    static int want[LINK_MEDIA][PATHS];
    memset(want, 0, sizeof want);
    for (int i = 0; i < n; i++)
        for (int k = 0, path = 1; k < p[i].n / LINK_BLOCK; k++) {
            path = path << 2 | p[i].token[k * LINK_BLOCK];
            want[p[i].medium][path] = 1;
        }
    assert_memory_equal(want, s->count, sizeof want);
}

static void open_at(struct link_events **e, const char *pub, const char *replay, bool array)
{
    struct err err;
    const struct link_events_options o = {.address = pub, .replay = replay, .topic = "kv@a@b",
                                          .array = array, .kind = "full_attention"};
    const ingle_status st = link_events_open(e, &o, &err);
    if (st)
        fail_msg("%s", err.msg);
}

static void check(bool array)
{
    static struct subscriber s;
    static struct prefix live[LIVE];
    struct link_events *e;
    struct link_events_counts counts;
    char pub[128];
    int n = 0;
    memset(&s, 0, sizeof s);
    open_at(&e, "127.0.0.1:*", "127.0.0.1:*", array);
    snprintf(pub, sizeof pub, "%s", link_events_address(e));
    snprintf(s.replay, sizeof s.replay, "%s", link_events_replay(e));
    s.array = array;
    s.context = zmq_ctx_new();
    s.socket = zmq_socket(s.context, ZMQ_SUB);
    assert_int_equal(zmq_setsockopt(s.socket, ZMQ_SUBSCRIBE, "kv@", 3), 0);
    assert_int_equal(zmq_connect(s.socket, pub), 0);
    for (int op = 0; op < 10000; op++) {
        if (n < LIVE && (!n || rand() % 2)) {
            random_prefix(&live[n]);
            live[n].name =
                link_events_put(e, live[n].medium, "", live[n].token, NULL, live[n].n);
            assert_int_equal(live[n].name != 0, live[n].n >= LINK_BLOCK);
            n++;
        } else {
            const int i = rand() % n;
            link_events_drop(e, live[i].medium, live[i].name);
            live[i] = live[--n];
        }
        if (op % 250 != 249)
            continue;
        link_events_count(e, &counts);
        follow(&s, counts.batches, op % 1000 == 999 ? 30 : 0);
        compare(&s, live, n);
        s.n_names = 0; /* paths are told again by what follows */
        for (int i = 0; i < n; i++)
            link_events_drop(e, live[i].medium, live[i].name);
        for (n = 0; op % 500 == 499 && n < 5; n++) {
            random_prefix(&live[n]);
            live[n].name = link_events_put(e, live[n].medium, "", live[n].token, NULL, live[n].n);
        }
        n = op % 500 == 499 ? 5 : 0;
        link_events_count(e, &counts);
        memset(s.count, 0, sizeof s.count);
        s.next = 0;
        s.n_names = 0;
        ask_again(&s); /* all of it from the beginning */
        compare(&s, live, n);
    }
    assert_true(counts.replays >= 40 && !counts.lost);
    link_events_close(e); /* the last word: nothing is there */
    open_at(&e, pub, s.replay, array);
    static const int32_t zeros[LINK_BLOCK];
    const uint64_t salted = link_events_put(e, LINK_GPU, "ann", zeros, NULL, LINK_BLOCK);
    assert_true(salted != 0);
    link_events_count(e, &counts);
    uint64_t number;
    zmq_msg_t m;
    memset(s.count, 0, sizeof s.count);
    s.next = 0;
    ask_again(&s);
    assert_int_equal(s.next, 2);
    assert_int_equal(s.count[LINK_GPU][1 << 2], 1);
    while (receive(s.socket, "kv@a@b", &number, &m))
        zmq_msg_close(&m);
    /* pictures have the names of pictures; text beside them is text */
    uint32_t media[LINK_BLOCK] = {0};
    assert_int_equal(link_events_put(e, LINK_GPU, "ann", zeros, media, LINK_BLOCK), salted);
    link_events_drop(e, LINK_GPU, salted);
    uint64_t shown[2];
    for (uint32_t i = 0; i < 2; i++) {
        media[3] = 7 + i;
        shown[i] = link_events_put(e, LINK_GPU, "ann", zeros, media, LINK_BLOCK);
        assert_true(shown[i] && shown[i] != salted);
        link_events_drop(e, LINK_GPU, shown[i]);
    }
    assert_true(shown[0] != shown[1]);
    link_events_close(e);
    zmq_close(s.socket);
    zmq_ctx_term(s.context);
}

static void test_maps(void **state)
{
    (void)state;
    srand(1);
    check(false);
}

static void test_arrays(void **state)
{
    (void)state;
    srand(2);
    check(true);
}

/* Nobody reads: nothing waits, and the ring keeps the last ones. */
static void test_bounds(void **state)
{
    struct link_events *e, *other;
    struct err err;
    struct link_events_counts n;
    int32_t token[LINK_BLOCK * 64];
    (void)state;
    struct link_events_options o = {.address = "127.0.0.1:*", .n_batches = 10, .n_bytes = 4000};
    assert_int_equal(link_events_open(&e, &o, &err), INGLE_OK);
    for (int i = 0; i < 1000; i++) {
        for (int k = 0; k < LINK_BLOCK * 64; k++)
            token[k] = i;
        const uint64_t name = link_events_put(e, LINK_GPU, "", token, NULL, LINK_BLOCK * 64);
        link_events_drop(e, LINK_GPU, name);
    }
    link_events_count(e, &n);
    assert_int_equal(n.batches, 2001);
    assert_int_equal(n.stored, 64000);
    assert_int_equal(n.removed, 64000);
    assert_int_equal(n.blocks[LINK_GPU], 0);
    o.address = link_events_address(e);
    assert_int_equal(link_events_open(&other, &o, &err), INGLE_IO);
    assert_non_null(strstr(err.msg, "--kv-events"));
    o.address = "127.0.0.1:99999";
    assert_int_equal(link_events_open(&other, &o, &err), INGLE_ARG);
    assert_non_null(strstr(err.msg, "65535"));
    link_events_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_maps), cmocka_unit_test(test_arrays),
                                       cmocka_unit_test(test_bounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
