/* inner - what the files of router share.  See router.h for the ideas. */
#ifndef INGLE_ROUTER_INNER_H
#define INGLE_ROUTER_INNER_H

#include "base/str.h"
#include "http/http.h"
#include "router/router.h"
#include "server/address.h"
#include "server/serve.h"
#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

enum { ROUTER_WORDS = 512, ROUTER_MAX_MODELS = 1024 };

enum router_state {
    ROUTER_UNLOADED,
    /* no process, but it was not taken away: idle, or its conversations are in the store */
    ROUTER_SLEEPING,
    ROUTER_FETCHING, /* its files are being fetched: nobody waits for that but its own requests */
    ROUTER_QUEUED,   /* it waits for room */
    ROUTER_PLANNING, /* a process computes what it needs */
    ROUTER_LOADING,
    ROUTER_LOADED,
    ROUTER_STOPPING,
};

/* A process of a model.  pid 0: there is none. */
struct router_child {
    pid_t pid;
    int end; /* a descriptor that can be read when it has ended; -1: none */
    /* pipes of standard error and output, socket of notices; -1: none */
    int errors, output, notices;
    bool plan;                   /* it only computes what the model needs */
    /* of standard error: the last line so far; of standard output: all */
    struct str line, text;
    char words[ROUTER_WORDS];    /* its last error, or "" */
    char socket[108], notice[108];
    uint64_t kill_at; /* when it is killed if it has not ended; 0: never */
    bool stderr_closed; /* it has closed standard error: it ends */
    bool ended;       /* it has, and nothing has been done about it */
    uint64_t doubt_until; /* it broke a connection: until then its end is waited for; 0: no */
};

struct router_job;
struct router_jobs { /* a queue */
    struct router_job *first, *last;
};

struct router_model {
    struct router_model *next;      /* of all */
    struct router_model *next_wait; /* of those that wait for room */
    uint32_t number; /* never given twice */
    char *id;
    struct ingle_config *config; /* owned */
    char **arg;                  /* [n_arg] and NULL: of the last start */
    size_t n_arg;
    enum router_state state, then; /* then: after the end of the process */
    bool pulled;   /* a client has named it: it is in no list of ours */
    bool removed;  /* by a new list: forgotten when it has no process and no requests */
    bool requested; /* to be loaded although nobody waits */
    bool preload;  /* ... and nobody leaves for it */
    bool fetched;  /* its files are there */
    bool checked;  /* its plan fits into all memory */
    bool again;    /* its process was killed while it started: one more follows */
    bool no_room;  /* its plan does not fit beside those that run */
    bool let_go;   /* to be unloaded when its answers are done, as a client has asked */
    bool leaving;  /* no new requests: another model has waited too long */
    bool info_requested; /* of the process that runs */
    bool failed;
    int exit_code; /* of the last process; 128 and the signal */
    char words[ROUTER_WORDS]; /* why the last start failed, or "" */
    char why[160];            /* why it is unloaded */
    uint64_t started_at;      /* ns: of loading */
    int n_failures;           /* starts in a row */
    uint64_t retry_at, queued_at, idle_since, loaded_at; /* ns */
    int64_t last_used_ms;     /* since 1970; 0: never */
    uint64_t need_bytes;      /* its plan, while it has a process */
    double progress;          /* of loading, 0 to 1 */
    struct json_object *info; /* its entry in the process's list of models, or NULL */
    struct router_child child;
    struct router_jobs waiting;
    int n_active; /* requests that its process has */
    uint64_t n_starts, n_failed_starts, n_crashes, n_requests;
};

struct router {
    struct router_options o;
    struct address address;
    struct http *http;
    struct serve serve; /* for endpoints of the server that need no model */
    char *directory;    /* with the sockets */
    int lock_fd;        /* the directory is in use */
    pthread_t thread;
    bool thread_runs;
    int epoll, wake;
    CURLM *multi;
    uint64_t timer; /* ns, when curl wants to be called; 0: never.  Router thread */
    int models_max;
    size_t max_waiting;

    pthread_mutex_t lock;
    /* Sync: lock */
    bool stop;
    bool reading; /* a thread reads files and folders for a new list */
    struct router_model *models, *queue;
    uint32_t n_numbers;
    struct router_jobs incoming;
    struct router_job *flagged, *active;
    struct router_model *planning;
    uint64_t budget_bytes; /* for all models; 0: not known yet */
    size_t n_waiting;      /* requests, and their bodies */
    size_t waiting_bytes;
    uint64_t n_requests, n_evicted;
    struct router_listener *listeners; /* of events */
};

/* say.c */
void router_wake(struct router *r);
bool router_watch(struct router *r, int fd, int what, uint32_t number);
enum {
    ROUTER_ON_WAKE,
    ROUTER_ON_CURL,
    ROUTER_ON_ERRORS,
    ROUTER_ON_OUTPUT,
    ROUTER_ON_NOTICES,
    ROUTER_ON_END
};
static inline uint64_t router_event(int what, uint32_t number)
{
    return (uint64_t)what << 32 | number;
}
ATTR_PRINTF(3, 4)
void router_say(struct router *r, const struct router_model *m, const char *fmt, ...);

/* router.c */
/* Reads files and folders, which may take long: without the lock.  What is wrong is reported. p is
 * ended by router_presets_release() also after a failure. */
MUST_CHECK ingle_status router_models_read(const struct router *r, struct router_presets *p,
                                           struct err *err);
/* The model of a name on a hub that a client has asked for: the one that is there, or a new one.
 * INGLE_LIMIT: there are too many.  Sync: lock */
MUST_CHECK ingle_status router_models_pull(struct router *r, const char *name,
                                           struct router_model **out, struct err *err);
/* They become the models, as far as they are others.  Sync: lock */
MUST_CHECK ingle_status router_models_take(struct router *r, struct router_presets *p,
                                           struct err *err);

#endif
