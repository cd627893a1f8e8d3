/*
 * link - frames between an engine and a worker that computes experts, and what carries them.
 *
 * A message is a head of LINK_HEAD bytes and a payload.  Everything a peer says is bounded and
 * compared with its head before it is used; an error names the field, its value and its limit.
 * Numbers are little-endian.  frame.c and hello.c know only bytes; carry.c moves them, seal.c
 * encrypts them.
 */
#ifndef INGLE_LINK_LINK_H
#define INGLE_LINK_LINK_H

#include "base/err.h"
#include "base/report.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LINK_VERSION = 2,
    LINK_HEAD = 48,
    LINK_HELLO_BYTES = 280,
    LINK_RESULT_BYTES = 24,
    LINK_EVAL_BYTES = 16,
    LINK_STATS_BYTES = 88,
    LINK_JOIN_BYTES = 640
};
enum {
    LINK_MAX_ROWS = 65536,
    LINK_MAX_PAIRS = LINK_MAX_ROWS * 64,
    LINK_MAX_LAYERS = 65536,
    LINK_MAX_EXPERTS = 4096,
    LINK_MAX_USED = 64,
    LINK_MAX_WIDTH = 1 << 20,
    LINK_MAX_TEXT = 400,
    LINK_MAX_PLACES = 65536,
    LINK_MAX_BYTES = 256 << 20, /* of a payload */
};

enum link_kind {
    LINK_HELLO = 1, /* both ways: who one is (struct link_hello) */
    LINK_EVAL,      /* to the worker: rows, and which experts are to compute which of them */
    LINK_RESULT,    /* back: f32 rows, one a pair, or one a row with LINK_SUM */
    LINK_FAIL,      /* back: a text; tag 0: nothing more is answered until another HELLO */
    LINK_BYE,       /* both ways: it ends in good order */
    /* to the worker: what was asked with this tag is not wanted; it is answered by a FAIL if it has
     * not begun */
    LINK_CANCEL,
    LINK_STATS,     /* to the worker, empty; back: struct link_stats */
    LINK_PLACE,     /* to the worker: experts that should be in its memory */
    LINK_HAVE,      /* back, and again when it changes: those that are */
    LINK_SHARE,     /* to the worker: memory for rows; back: empty, where it is used */
    /* layers of a model (stage/stage.h): both ways, who one is; to the stage, a step; back or to
     * the next stage, rows; to the stage, what happens to pages; a part of a page that is asked
     * for, and back */
    LINK_JOIN,
    LINK_STEP,
    LINK_ROWS,
    LINK_PAGES,
    LINK_PAGE,
    LINK_NEXT,      /* to a stage: where the next one is; back: whether it is connected */
    LINK_CHAIN,     /* from a stage to the next one: whose rows will come; back, empty: accepted */
    LINK_TRY,       /* to the stage: bytes, and how many are wanted; back: so many */
    LINK_KEEP,      /* to the stage: pages go to files or come from there; back: which there are */
};
enum link_flags {
    LINK_SUM = 1,  /* all experts of each row are asked for: their weighted sum comes back */
    LINK_SILU = 2, /* the activation; else GELU */
    LINK_FLAGS = 3,
    /* the payload is in shared memory; the message has a u64, the place, instead */
    LINK_SHARED = 4,
    LINK_LOOK = 8,   /* of a HELLO to the worker: it says who it is, and agrees on nothing */
};

struct link_head {
    enum link_kind kind;
    uint32_t layer, n_rows, n_pairs, flags;
    uint64_t step, tag;
};

/* What both ends have agreed on: the bounds of all that follows. */
struct link_shape {
    int64_t n_layers, n_experts, hidden; /* layers of the model, with experts or not */
    int64_t most_rows, most_pairs;       /* of an EVAL */
};

/* Layers: [from, to), or all of them. */
struct link_range { bool all; uint32_t from, to; };
/* "all", or "A:B" with A < B. */
MUST_CHECK ingle_status link_range_parse(const char *text, struct link_range *out, struct err *err);
bool link_range_has(const struct link_range *r, int64_t layer);
bool link_range_meets(const struct link_range *a, const struct link_range *b);
void link_range_text(const struct link_range *r, char *out, size_t n);

struct link_hello {
    uint16_t version_min, version_max;
    uint32_t arithmetic, layout;   /* what bits results have; how weights are packed */
    /* of a worker: what it computes; of an engine: what it asks for */
    struct link_range range;
    /* hashes of the model: shapes and parameters; samples of the experts; all bytes, 0: not
     * known */
    uint64_t form, mark, sum;
    uint32_t n_layers, n_experts, n_used, hidden, width;
    uint32_t most_rows, most_pairs; /* of an EVAL, at most */
    uint32_t threads;
    uint64_t slots, budget_bytes;  /* places for experts in memory */
    char numerics[48], family[32], cpu[32], engine[32]; /* ended by 0 */
};
/* Whether two ends can compute together; INGLE_UNSUP names the first field in which they differ. */
MUST_CHECK ingle_status link_hello_agree(const struct link_hello *mine,
                                         const struct link_hello *theirs, struct err *err);
void link_hello_write(const struct link_hello *h, uint8_t out[LINK_HELLO_BYTES]);
/* INGLE_FORMAT: a field is outside its limit. */
MUST_CHECK ingle_status link_hello_read(const uint8_t *at, size_t n, struct link_hello *out,
                                        struct err *err);

/* Head and payload as they came; shape NULL: no HELLO was agreed on, and only HELLO, FAIL and BYE
 * may come. INGLE_FORMAT: the peer is wrong and is not to be listened to. */
MUST_CHECK ingle_status link_head_read(const uint8_t *head, size_t n_head, const uint8_t *payload,
                                       size_t n_payload, const struct link_shape *shape,
                                       struct link_head *out, struct err *err);
void link_head_write(const struct link_head *h, const uint8_t *payload, size_t n_payload,
                     uint8_t out[LINK_HEAD]);

/* The payload of an EVAL: pairs by ascending expert, within one by ascending row. */
struct link_eval {
    int64_t n_used;        /* with LINK_SUM: experts of each row; else 0 */
    float limit;           /* of the activation; 0: none */
    const uint8_t *row;    /* u32 [n_pairs]: of x.  Any address: read by link_u32() */
    const uint8_t *expert; /* u32 [n_pairs] */
    const uint8_t *weight; /* f32 [n_pairs], with LINK_SUM */
    const uint8_t *x;      /* f32 [n_rows][hidden] */
};
/* of the payload; 0: too many */
size_t link_eval_bytes(const struct link_head *h, const struct link_shape *s);
/* Where its parts go in a payload of link_eval_bytes(). */
void link_eval_lay(const struct link_head *h, uint8_t *payload, struct link_eval *out);
void link_eval_begin(uint8_t *payload, int64_t n_used, float limit);
MUST_CHECK ingle_status link_eval_read(const struct link_head *h, const struct link_shape *s,
                                       const uint8_t *payload, size_t n, struct link_eval *out,
                                       struct err *err);

struct link_result {
    uint64_t compute_ns, stall_ns; /* all of it; waiting for the disk */
    uint32_t hits, misses;         /* experts that were in memory, and not */
    const uint8_t *y;              /* f32 [n_pairs, or n_rows with LINK_SUM][hidden] */
};
size_t link_result_bytes(const struct link_head *h, const struct link_shape *s); /* 0: too many */
void link_result_begin(uint8_t *payload, const struct link_result *r);
MUST_CHECK ingle_status link_result_read(const struct link_head *h, const struct link_shape *s,
                                         const uint8_t *payload, size_t n, struct link_result *out,
                                         struct err *err);
/* A FAIL's text, cut and cleaned of what is no printable ASCII. */
void link_fail_text(const uint8_t *payload, size_t n, char out[LINK_MAX_TEXT + 1]);

/* What a worker says of itself. */
struct link_stats {
    uint64_t evals, pairs, failed, cancelled, peers; /* since its start; engines that are there */
    /* places for experts; experts that stay; experts that could not be read */
    uint64_t slots, resident, bad;
    uint64_t read_bytes, stall_ns, up_ns;
};
void link_stats_write(const struct link_stats *s, uint8_t out[LINK_STATS_BYTES]);
MUST_CHECK ingle_status link_stats_read(const uint8_t *at, size_t n, struct link_stats *out,
                                        struct err *err);

/* A PLACE's payload: u32 layer << 16 | expert, the most important first.  All of them are checked,
 * so that link_place_at() needs no more. */
static inline uint32_t link_place(int64_t layer, int64_t expert)
{
    return (uint32_t)layer << 16 | (uint32_t)expert;
}
MUST_CHECK ingle_status link_place_check(const struct link_shape *s, const uint8_t *payload,
                                         size_t n, struct err *err);
void link_place_at(const uint8_t *payload, size_t i, int64_t *layer, int64_t *expert);
/* A HAVE's payload: a bit for each expert of each layer, from the lowest on. */
size_t link_have_bytes(const struct link_shape *s);
static inline bool link_have_at(const uint8_t *bits, size_t i) { return bits[i / 8] >> i % 8 & 1; }

uint32_t link_u32(const uint8_t *at);
void link_put_u32(uint8_t *at, uint32_t v);

/* ---- memory that both ends have ---- */

enum {
    LINK_SLOTS = 2,
    LINK_SHARE_HELLO = 24,
    LINK_SHARE_PLACE = 8 << 20,
    LINK_SHARE_BYTES = 4096 + 2 * LINK_SLOTS * LINK_SHARE_PLACE
};
/* Zero: there is none.  fd is owned. */
struct link_share { uint8_t *at; int fd; uint64_t mark; };
/* An engine's; what it sends the worker, who opens it.  INGLE_UNSUP: it cannot be had, and rows go
 * through the socket. */
MUST_CHECK ingle_status link_share_create(struct link_share *out, struct err *err);
void link_share_write(const struct link_share *s, uint8_t out[LINK_SHARE_HELLO]);
MUST_CHECK ingle_status link_share_open(struct link_share *out,
                                        const uint8_t hello[LINK_SHARE_HELLO], struct err *err);
void link_share_close(struct link_share *s);
/* LINK_SHARE_PLACE bytes for the payload of an EVAL, or of its RESULT.  What the other end may
 * write there: it is copied before it is checked. */
uint8_t *link_share_place(const struct link_share *s, int slot, bool back);
/* The payload of a message with LINK_SHARED: which slot.  INGLE_FORMAT: there is none such. */
MUST_CHECK ingle_status link_share_slot(const uint8_t *payload, size_t n, int *slot,
                                        struct err *err);

/* ---- addresses and keys ---- */

enum link_place { LINK_TCP, LINK_UNIX, LINK_HANDED };
struct link_address {
    enum link_place place;
    char endpoint[300]; /* "tcp://HOST:PORT", "ipc://PATH" */
    int fd;             /* of LINK_HANDED */
    bool near;          /* this host alone */
};
/* "HOST:PORT", "[IPV6]:PORT", "unix:PATH"; listening also "fd:N", a socket that listens already. */
MUST_CHECK ingle_status link_address_parse(const char *text, bool listening,
                                           struct link_address *out, struct err *err);
/* "ADDRESS,ADDRESS,...", which is cut: out [most + 1] borrows from it, *n is at most as many.
 * INGLE_ARG: one of them is empty; option is named. */
MUST_CHECK ingle_status link_addresses_cut(char *text, const char *option, const char **out,
                                           int most, int *n, struct err *err);

enum { LINK_SECRET = 32 };
/* A file with 64 hexadecimal digits, which nobody but its owner may read. */
MUST_CHECK ingle_status link_secret_read(const char *path, uint8_t out[LINK_SECRET],
                                         struct err *err);
/* What each end has of the secret both know: role "worker" or "engine". */
void link_secret_derive(const uint8_t secret[LINK_SECRET], const char *role,
                        uint8_t out[LINK_SECRET]);

/* ---- ends: used by one thread at a time ---- */

struct link_options {
    const char *address;
    const char *key_file;  /* NULL: messages are not encrypted */
    bool plain;            /* beyond this host without a key all the same */
    /* of a payload that is taken before link_admit(): and so for ever where there is none such */
    uint64_t most_bytes;
    bool strangers; /* whoever is not admitted may not go on for long */
    int heartbeat_ms, dead_ms; /* 0: 500, 2000 */
    bool no_aes;               /* encrypts as a processor without AES instructions does */
};

struct link; /* an end.  It has a thread that moves bytes */

bool link_is_built(void); /* with a carrier; else opening is INGLE_UNSUP */
/* A worker's end, which listens; and an engine's, which connects in the background and goes on
 * trying. */
MUST_CHECK ingle_status link_listen(struct link **out, const struct link_options *o,
                                    struct err *err);
MUST_CHECK ingle_status link_dial(struct link **out, const struct link_options *o, struct err *err);
void link_close(struct link *l);
/* "127.0.0.1:41000": where it listens. */
const char *link_name(const struct link *l);

/* a connection: whom a message came from; of a dialled end nothing */
struct link_peer { uint8_t n, id[8]; };
/* The peer has said who it is, and may send messages of so many bytes, or of more if it already
 * could.  What has come and is not taken has four times the bytes of the longest message that any
 * peer may send.  A listening end has a bound of connections: those that are not admitted make room
 * for others. */
enum { LINK_STRANGER_BYTES = 4096 }; /* what an end that is to be greeted takes before */
void link_admit(struct link *l, const struct link_peer *p, uint64_t most_bytes);
/* Why an end that dials has no connection, as far as it is known; else NULL. */
const char *link_trouble(struct link *l);
/* What encrypts a connection; NULL: nothing, or there is none.  *slow: NULL, or why it is not the
 * fast one. */
const char *link_cipher(struct link *l, const struct link_peer *p, const char **slow);

/* A message on its way out: payload n bytes, any address, written by the caller.  link_send() takes
 * it in any case; false: the peer has left or takes no more. */
struct link_out { uint8_t *payload; size_t n; };
MUST_CHECK bool link_out_init(struct link_out *m, size_t n);
/* The same for messages of steps: memory of messages that an end has sent or had is used again. */
MUST_CHECK bool link_out_take(struct link *l, struct link_out *m, size_t n);
/* So many of n bytes are there, if there is memory. */
void link_reserve(struct link *l, size_t n, int count);
void link_out_release(struct link_out *m);
MUST_CHECK bool link_send(struct link *l, const struct link_peer *to, const struct link_head *h,
                          struct link_out *m);
/* A message would be taken now; or will be, as there is a connection. */
bool link_has_room(struct link *l, const struct link_peer *to);
bool link_is_up(struct link *l, const struct link_peer *to);
/* No message to it waits, or is half sent. */
bool link_has_sent(struct link *l, const struct link_peer *to);

/* A message that came, as bytes. */
struct link_in {
    struct link_peer from;
    const uint8_t *head, *payload;
    size_t n_head, n_payload;
    void *block; /* owned: where they are */
};
enum link_event { LINK_NOTHING, LINK_UP, LINK_DOWN, LINK_MESSAGE };
/* Waits timeout_ms at most (0: not at all).  LINK_UP, LINK_DOWN: a dialled end has, or has no
 * longer, a connection; why says the reason.  A listening end reports the second, with in->from.
 * LINK_MESSAGE: *in is to be released. */
enum link_event link_wait(struct link *l, int timeout_ms, struct link_in *in, char *why,
                          size_t n_why);
void link_in_release(struct link_in *in);
void link_in_move(struct link_in *to, struct link_in *from); /* from is released */
/* Until any of n ends (at most LINK_SLEEP; NULL ones do not count) has something, or timeout_ms
 * have passed. */
enum { LINK_SLEEP = 8 };
void link_sleep(struct link *const *l, int n, int timeout_ms);

#endif
