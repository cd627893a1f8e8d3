/* SPDX-License-Identifier: Apache-2.0 */
/* Two ends with somebody between them who reads, changes, repeats, moves and cuts what they say. */
#define _GNU_SOURCE
#include "base/clock.h"
#include "link/inner.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cmocka.h>

enum { CELL = 64 << 10, KEPT = 1 << 20, SEALED_HEAD = 8 + LINK_TAG };
static char dir[] = "/tmp/ingle-carry-XXXXXX", key_a[64], key_b[64];

static atomic_int large; /* memory that was taken for payloads of a mebibyte and more */

void *__real_mem_alloc(size_t n_bytes);
void *__wrap_mem_alloc(size_t n_bytes);

void *__wrap_mem_alloc(size_t n_bytes)
{
    atomic_fetch_add(&large, n_bytes > 1 << 20);
    return __real_mem_alloc(n_bytes);
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return 1;
    snprintf(key_a, sizeof key_a, "%s/a", dir);
    snprintf(key_b, sizeof key_b, "%s/b", dir);
    for (int k = 0; k < 2; k++) {
        FILE *f = fopen(k ? key_b : key_a, "we");
        if (!f || fchmod(fileno(f), 0600) != 0)
            return 1;
        for (int i = 0; i < 32; i++)
            fprintf(f, "%02x", 7 * i + k);
        fclose(f);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    (void)unlink(key_a);
    (void)unlink(key_b);
    return rmdir(dir);
}

/* ---- ends ---- */

struct pair {
    struct link *from, *to; /* dials; listens */
    int listens, in, out;   /* of the one between: its address, its connections */
    uint8_t kept[KEPT];     /* what the dialling end has said, not passed on yet */
    size_t n_kept;
};

static struct link *listen_at(const char *key)
{
    struct link *l;
    const struct link_options o = {
        .address = "127.0.0.1:0", .key_file = key, .most_bytes = LINK_MAX_BYTES, .dead_ms = 20000};
    assert_int_equal(link_listen(&l, &o, NULL), INGLE_OK);
    return l;
}

static struct link *dial_to(const char *address, const char *key, bool no_aes)
{
    struct link *l;
    const struct link_options o = {.address = address,
                                   .key_file = key,
                                   .most_bytes = LINK_MAX_BYTES,
                                   .dead_ms = 20000,
                                   .heartbeat_ms = 10000,
                                   .no_aes = no_aes};
    assert_int_equal(link_dial(&l, &o, NULL), INGLE_OK);
    return l;
}

static struct sockaddr_in near_port(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

static int port_of(const char *name)
{
    return (int)strtol(strrchr(name, ':') + 1, NULL, 10);
}

static int connect_to(int port)
{
    const struct sockaddr_in a = near_port(port);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && connect(fd, (const struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

static void write_all(int fd, const uint8_t *at, size_t n)
{
    while (n) {
        const ssize_t k = send(fd, at, n, MSG_NOSIGNAL);
        assert_true(k > 0);
        at += k;
        n -= (size_t)k;
    }
}

static void read_all(int fd, uint8_t *at, size_t n)
{
    while (n) {
        const ssize_t k = recv(fd, at, n, 0);
        assert_true(k > 0);
        at += k;
        n -= (size_t)k;
    }
}

static enum link_event wait_for(struct link *l, struct link_in *in, char *why, size_t n_why)
{
    enum link_event e = LINK_NOTHING;
    for (int i = 0; i < 500 && e == LINK_NOTHING; i++)
        e = link_wait(l, 20, in, why, n_why);
    return e;
}

/* Preambles and first pings are through; what the dialling end says from here on is held back. */
static void pair_open(struct pair *p, const char *key, bool no_aes)
{
    struct sockaddr_in a = near_port(0);
    socklen_t n = sizeof a;
    char address[64], why[200];
    uint8_t some[LINK_PREAMBLE];
    struct link_in in;
    *p = (struct pair){.to = listen_at(key), .listens = socket(AF_INET, SOCK_STREAM, 0)};
    assert_true(bind(p->listens, (struct sockaddr *)&a, sizeof a) == 0 &&
                listen(p->listens, 4) == 0 &&
                getsockname(p->listens, (struct sockaddr *)&a, &n) == 0);
    snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(a.sin_port));
    p->from = dial_to(address, key, no_aes);
    p->in = accept(p->listens, NULL, NULL);
    p->out = connect_to(port_of(link_name(p->to)));
    const size_t ping = key ? SEALED_HEAD : 8;
    read_all(p->in, some, LINK_PREAMBLE);
    write_all(p->out, some, LINK_PREAMBLE);
    read_all(p->out, some, LINK_PREAMBLE);
    write_all(p->in, some, LINK_PREAMBLE);
    read_all(p->in, some, ping);
    write_all(p->out, some, ping);
    read_all(p->out, some, ping);
    write_all(p->in, some, ping);
    assert_int_equal(wait_for(p->from, &in, why, sizeof why), LINK_UP);
}

static void pair_close(struct pair *p)
{
    (void)close(p->in);
    (void)close(p->out);
    (void)close(p->listens);
    link_close(p->from);
    link_close(p->to);
}

/* A message of n bytes is held back; where it begins. */
static size_t say(struct pair *p, uint8_t value, size_t n)
{
    struct link_out m;
    const size_t at = p->n_kept, all = LINK_HEAD + n;
    const size_t sealed = SEALED_HEAD + all + LINK_TAG * ((all + CELL - 1) / CELL);
    assert_true(link_out_init(&m, n));
    memset(m.payload, value, n);
    assert_true(link_send(p->from, NULL, &(struct link_head){.kind = LINK_FAIL}, &m));
    assert_true(at + sealed <= KEPT);
    read_all(p->in, p->kept + at, sealed);
    p->n_kept += sealed;
    return at;
}

static void pass(struct pair *p, size_t from, size_t n)
{
    write_all(p->out, p->kept + from, n);
}

static void hear(struct pair *p, uint8_t value, size_t n)
{
    char why[200];
    struct link_in in;
    assert_int_equal(wait_for(p->to, &in, why, sizeof why), LINK_MESSAGE);
    assert_int_equal(in.n_payload, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(in.payload[i], value);
    link_admit(p->to, &in.from, LINK_MAX_BYTES);
    link_in_release(&in);
}

/* Nothing arrives, and the connection ends for this reason. */
static void refused(struct pair *p, const char *reason)
{
    char why[200] = "";
    struct link_in in;
    assert_int_equal(wait_for(p->to, &in, why, sizeof why), LINK_DOWN);
    assert_string_equal(why, reason);
}

/* ---- what somebody between them may do ---- */

static void messages_arrive_as_they_are(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        struct pair *p = malloc(sizeof *p);
        const char *slow;
        assert_non_null(p);
        pair_open(p, k < 2 ? key_a : NULL, k == 1);
        const char *cipher = link_cipher(p->from, NULL, &slow);
        if (k == 2) {
            assert_true(!cipher && !slow);
        } else if (k == 1 || slow) {
            assert_string_equal(cipher, "ChaCha20-Poly1305");
            assert_true(k == 0 || strcmp(slow, "this processor has no AES instructions") == 0);
        } else {
            assert_string_equal(cipher, "AES-256-GCM");
        }
        static const size_t sizes[] = {0, 1, CELL - LINK_HEAD, CELL - LINK_HEAD + 1, 3 * CELL};
        for (size_t i = 0; k < 2 && i < sizeof sizes / sizeof *sizes; i++) {
            const size_t at = say(p, (uint8_t)(i + 1), sizes[i]);
            pass(p, at, p->n_kept - at);
            hear(p, (uint8_t)(i + 1), sizes[i]);
        }
        pair_close(p);
        free(p);
    }
}

/* Where a bit is turned over: in the head, its tag, a piece, the last tag. */
static void a_changed_bit_ends_the_connection(void **state)
{
    (void)state;
    for (int k = 0; k < 8; k++) {
        struct pair *p = malloc(sizeof *p);
        assert_non_null(p);
        pair_open(p, key_a, k % 2);
        const size_t at = say(p, 1, 100);
        pass(p, at, p->n_kept - at);
        hear(p, 1, 100);
        const size_t bad = say(p, 2, CELL + 100), n = p->n_kept - bad;
        const size_t where[] = {0, SEALED_HEAD - 1, SEALED_HEAD + 500, n - 1};
        p->kept[bad + where[k / 2]] ^= (uint8_t)(1 << k);
        pass(p, bad, n);
        refused(p, "a frame is damaged");
        pair_close(p);
        free(p);
    }
}

enum deed { REPEAT, SKIP, MOVE, SPLICE, CUT, CUT_HEAD, DEEDS };

static void messages_keep_their_order(void **state)
{
    (void)state;
    for (int k = 0; k < DEEDS; k++) {
        struct pair *p = malloc(sizeof *p);
        const char *reason = "a frame is damaged";
        assert_non_null(p);
        pair_open(p, key_a, false);
        const size_t first = say(p, 1, 300), second = say(p, 2, 300), third = say(p, 3, 300);
        const size_t n = second - first;
        pass(p, first, n);
        hear(p, 1, 300);
        if (k == REPEAT) {
            pass(p, first, n);
        } else if (k == SKIP) {
            pass(p, third, n);
        } else if (k == MOVE) {
            pass(p, third, n);
            pass(p, second, n);
        } else if (k == SPLICE) { /* the head of one, the piece of another */
            pass(p, second, SEALED_HEAD);
            pass(p, third + SEALED_HEAD, n - SEALED_HEAD);
        } else {
            pass(p, second, k == CUT ? n - 1 : 5);
            assert_int_equal(shutdown(p->out, SHUT_WR), 0);
            reason = "the connection is gone";
        }
        refused(p, reason);
        pair_close(p);
        free(p);
    }
}

/* All that an engine said to a worker once is said again by somebody who has no key. */
static void nothing_of_an_earlier_connection_opens(void **state)
{
    (void)state;
    struct link *to = listen_at(key_a);
    struct link_in in;
    char why[200], address[64];
    uint8_t old[4096], theirs[LINK_PREAMBLE];
    size_t n_old = 0;
    struct sockaddr_in a = near_port(0);
    socklen_t n = sizeof a;
    const int listens = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(bind(listens, (struct sockaddr *)&a, sizeof a) == 0 && listen(listens, 4) == 0 &&
                getsockname(listens, (struct sockaddr *)&a, &n) == 0);
    snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(a.sin_port));
    struct link *from = dial_to(address, key_a, false);
    const int left = accept(listens, NULL, NULL), right = connect_to(port_of(link_name(to)));
    read_all(left, old, LINK_PREAMBLE);
    write_all(right, old, LINK_PREAMBLE);
    read_all(right, theirs, LINK_PREAMBLE);
    write_all(left, theirs, LINK_PREAMBLE);
    n_old = LINK_PREAMBLE + SEALED_HEAD;
    read_all(left, old + LINK_PREAMBLE, SEALED_HEAD);
    write_all(right, old + LINK_PREAMBLE, SEALED_HEAD);
    (void)close(left);
    (void)close(right);

    const int again = connect_to(port_of(link_name(to)));
    write_all(again, old, n_old);
    ssize_t k, heard = 0;
    while ((k = recv(again, theirs, sizeof theirs, 0)) > 0)
        heard += k;
    assert_true(heard <= LINK_PREAMBLE); /* it hangs up without another word */
    assert_int_equal(link_wait(to, 50, &in, why, sizeof why), LINK_NOTHING);
    (void)close(again);
    (void)close(listens);
    link_close(from);
    link_close(to);
}

static void ends_that_do_not_fit_say_why(void **state)
{
    (void)state;
    static const struct {
        bool worker_key;
        int engine_key; /* 0: none; 1: the same; 2: another */
        const char *why;
    } cases[] = {{true, 2, "there is no handshake"},
                 {true, 0, "the other end has a key"},
                 {false, 1, "the other end has no key"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct link *to = listen_at(cases[i].worker_key ? key_a : NULL);
        const char *key = cases[i].engine_key == 1 ? key_a : cases[i].engine_key ? key_b : NULL;
        struct link *from = dial_to(link_name(to), key, false);
        struct link_in in;
        char why[200] = "";
        assert_int_equal(wait_for(from, &in, why, sizeof why), LINK_DOWN);
        assert_string_equal(why, cases[i].why);
        link_close(from);
        link_close(to);
    }
}

/* Versions of the preamble from before and after this one, and no preamble at all. */
static void other_versions_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        const char *why;
    } cases[] = {{"ingleend\x00", "the other end speaks another version of the protocol"},
                 {"ingleend\x02", "the other end speaks another version of the protocol"},
                 {"\xff\0\0\0\0\0\0\x01\x7f", "the other end is none of this version of ingle"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sockaddr_in a = near_port(0);
        socklen_t n = sizeof a;
        char address[64], why[200] = "";
        uint8_t preamble[LINK_PREAMBLE] = {0};
        struct link_in in;
        const int listens = socket(AF_INET, SOCK_STREAM, 0);
        assert_true(bind(listens, (struct sockaddr *)&a, sizeof a) == 0 &&
                    listen(listens, 4) == 0 &&
                    getsockname(listens, (struct sockaddr *)&a, &n) == 0);
        snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(a.sin_port));
        struct link *from = dial_to(address, key_a, false);
        const int fd = accept(listens, NULL, NULL);
        memcpy(preamble, cases[i].bytes, 9);
        write_all(fd, preamble, sizeof preamble);
        assert_int_equal(wait_for(from, &in, why, sizeof why), LINK_DOWN);
        assert_string_equal(why, cases[i].why);
        (void)close(fd);
        (void)close(listens);
        link_close(from);
    }
}

/* A message of n bytes; what comes of it at either end. */
static enum link_event send_to(struct link *from, struct link *to, size_t n, struct link_in *in)
{
    struct link_out m;
    enum link_event e = LINK_NOTHING;
    char why[200];
    assert_true(link_out_init(&m, n));
    memset(m.payload, 0, n);
    assert_true(link_send(from, NULL, &(struct link_head){.kind = LINK_FAIL}, &m));
    for (int i = 0; i < 1000 && e == LINK_NOTHING; i++) {
        struct link_in other;
        e = link_wait(to, 5, in, why, sizeof why);
        if (e == LINK_NOTHING && link_wait(from, 5, &other, why, sizeof why) == LINK_DOWN)
            return LINK_DOWN;
    }
    return e;
}

/* Before it is admitted a peer may say little, then as much as it was admitted for. */
static void longer_messages_end_the_connection(void **state)
{
    (void)state;
    enum { LITTLE = 4096, MUCH = 100000 };
    static const struct { size_t n; uint64_t admitted; } cases[] = {
        {LITTLE, 0}, {LITTLE + 1, 0}, {MUCH, MUCH}, {MUCH + 1, MUCH}, {8 << 20, MUCH},
        {MUCH, 1}, {LITTLE, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct link *to;
        const struct link_options o = {
            .address = "127.0.0.1:0", .most_bytes = LITTLE, .strangers = true, .dead_ms = 20000};
        assert_int_equal(link_listen(&to, &o, NULL), INGLE_OK);
        struct link *from = dial_to(link_name(to), NULL, false);
        struct link_in in;
        char why[200];
        assert_int_equal(wait_for(from, &in, why, sizeof why), LINK_UP);
        assert_int_equal(send_to(from, to, 8, &in), LINK_MESSAGE);
        if (cases[i].admitted)
            link_admit(to, &in.from, cases[i].admitted);
        link_in_release(&in);
        const uint64_t most = cases[i].admitted > LITTLE ? cases[i].admitted : LITTLE;
        const enum link_event e = send_to(from, to, cases[i].n, &in);
        if (cases[i].n > most) {
            assert_int_equal(e, LINK_DOWN);
        } else {
            assert_int_equal(e, LINK_MESSAGE);
            assert_int_equal(in.n_payload, cases[i].n);
            link_in_release(&in);
        }
        link_close(from);
        link_close(to);
    }
}

/* Peers that go on while nobody takes what they have said: so much is read and no more, and all of
 * it arrives when it is taken. */
static void what_waits_is_bounded(void **state)
{
    (void)state;
    enum { PEERS = 6, EACH = 4, BYTES = 3 << 20, WAIT = 4 };
    struct link *from[PEERS], *to;
    struct link_in in;
    char why[200];
    const struct link_options o = {.address = "127.0.0.1:0",
                                   .most_bytes = LINK_STRANGER_BYTES,
                                   .strangers = true,
                                   .dead_ms = 20000};
    assert_int_equal(link_listen(&to, &o, NULL), INGLE_OK);
    for (int i = 0; i < PEERS; i++) {
        from[i] = dial_to(link_name(to), NULL, false);
        assert_int_equal(wait_for(from[i], &in, why, sizeof why), LINK_UP);
        assert_int_equal(send_to(from[i], to, 8, &in), LINK_MESSAGE);
        link_admit(to, &in.from, BYTES);
        link_in_release(&in);
    }
    atomic_store(&large, 0);
    for (int i = 0; i < PEERS; i++)
        for (int k = 0; k < EACH; k++) {
            struct link_out m;
            assert_true(link_out_init(&m, BYTES)); /* of the sender: counted, too */
            memset(m.payload, k, BYTES);
            assert_true(link_send(from[i], NULL, &(struct link_head){.kind = LINK_FAIL}, &m));
        }
    int before = -1;
    while (atomic_load(&large) != before) { /* until no more is taken */
        before = atomic_load(&large);
        (void)usleep(100000);
    }
    assert_true(before <= PEERS * EACH + WAIT);
    for (int i = 0; i < PEERS * EACH; i++) {
        assert_int_equal(wait_for(to, &in, why, sizeof why), LINK_MESSAGE);
        assert_int_equal(in.n_payload, BYTES);
        link_in_release(&in);
    }
    for (int i = 0; i < PEERS; i++)
        link_close(from[i]);
    link_close(to);
}

int main(void)
{
    if (!link_is_built()) {
        print_message("built without libcrypto\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive_as_they_are),
        cmocka_unit_test(a_changed_bit_ends_the_connection),
        cmocka_unit_test(messages_keep_their_order),
        cmocka_unit_test(nothing_of_an_earlier_connection_opens),
        cmocka_unit_test(ends_that_do_not_fit_say_why),
        cmocka_unit_test(other_versions_are_named),
        cmocka_unit_test(longer_messages_end_the_connection),
        cmocka_unit_test(what_waits_is_bounded),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
