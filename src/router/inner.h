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
    bool errors_over; /* it has closed standard error: it ends */
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
    bool asked;    /* to be loaded although nobody waits */
    bool preload;  /* ... and nobody leaves for it */
    bool fetched;  /* its files are there */
    bool checked;  /* its plan fits into all memory */
    bool again;    /* its process was killed while it started: one more follows */
    bool no_room;  /* its plan does not fit beside those that run */
    bool let_go;   /* to be unloaded when its answers are done, as a client has asked */
    bool leaving;  /* no new requests: another model has waited too long */
    bool info_asked; /* of the process that runs */
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

/* A request that is passed on.  Router thread only, but for what is atomic and what the handler
 * sets before. */
struct router_job {
    struct router_job *next;         /* in `incoming`, or of those that wait for a model */
    struct router_job *next_flagged; /* Sync: router->lock */
    bool flagged;                    /* Sync: router->lock */
    struct router_job *next_active, **active_at; /* of those that a process has */
    struct router *router;
    struct http_exchange *x; /* NULL: it asks for the router itself */
    struct router_model *model;
    struct http_request rq; /* method, path, id: what errors look at */
    char *user;             /* of its key; "" without keys */
    char *target;           /* with its query */
    struct curl_slist *headers;
    char *body; /* [n_body] */
    size_t n_body;
    /* [n_candidates] numbers of models that are asked in turn while the answer is 404 */
    uint32_t *candidate;
    size_t n_candidates, at_candidate;
    bool sse;        /* the answer will be a stream of events */
    bool use;        /* it counts as a use of the model */
    bool autoload;
    bool let_go;     /* its model is unloaded when its answers are done */
    bool passed;     /* the client has something of the answer */
    atomic_bool gone, room, silent;
    uint64_t arrived;

    CURL *easy; /* NULL: it is not with a process */
    int n_tries; /* connections that were refused */
    int n_lost;  /* processes that ended before they had answered */
    int status;
    bool begun, streams, whole, paused, over, counted;
    char content_type[128];
    struct str head;  /* "name\0value\0" ... */
    struct str reply; /* a whole answer, or the beginning of an event */
    struct router_gather *gather; /* instead of x */
};

/* Answers of several processes that become one. */
struct router_gather {
    struct http_exchange *x; /* held; NULL: an entry of a list of models */
    struct http_request rq;
    int n_left;
    struct {
        char *id;
        struct str text;
    } *part; /* [n] */
    size_t n;
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

/* model.c.  Sync: lock */
struct router_model *router_by_number(const struct router *r, uint32_t number);
/* By id or alias. */
struct router_model *router_by_name(const struct router *r, const char *name);
/* The one that "any" stands for, or NULL. */
struct router_model *router_any(const struct router *r);
const char *router_state_word(const struct router_model *m);
/* It is loaded, and takes requests. */
bool router_is_up(const struct router_model *m);
void router_used(struct router_model *m);
/* The state is another one: listeners are told. */
void router_set_state(struct router *r, struct router_model *m, enum router_state state);
void router_model_free(struct router_model *m);
double router_number(const struct router *r, const struct router_model *m, const char *option);
const char *router_text(const struct router *r, const struct router_model *m, const char *option,
                        size_t i);
bool router_flag(const struct router *r, const struct router_model *m, const char *option);
/* Fills m->arg with the command line; memory_bytes 0: no limit. */
MUST_CHECK bool router_arguments(struct router *r, struct router_model *m, uint64_t memory_bytes,
                                 bool plan);
/* Tells listeners. */
void router_tell(struct router *r, const char *id, const char *event, const struct router_model *m);
bool router_listen(struct router *r, struct http_exchange *x);
void router_unlisten(struct router *r);

/* child.c.  Sync: lock */
MUST_CHECK ingle_status router_child_start(struct router *r, struct router_model *m, bool plan,
                                           struct err *err);
void router_child_stop(struct router *r, struct router_model *m, double seconds);
void router_child_read(struct router *r, struct router_model *m, int what);
/* True: it has ended; *code is its exit status, or 128 and the signal. */
/* Looks which processes are ending, for who tells what runs; the router's thread hears of their
 * ends by itself. */
void router_children_look(const struct router *r);
bool router_child_ended(struct router *r, struct router_model *m, int *code);
/* Closes what is left of it. */
void router_child_clear(struct router *r, struct router_model *m);

/* start.c.  Sync: lock */
void router_ask(struct router *r, struct router_model *m, bool preload);
/* A request waits for m: it is loaded as long as one does. */
void router_want(struct router *r, struct router_model *m);
void router_unload(struct router *r, struct router_model *m, enum router_state then,
                   const char *why);
void router_settle(struct router *r);
/* The time of the next thing that router_settle() has to do; 0: none. */
uint64_t router_next_time(const struct router *r, uint64_t now);

/* proxy.c; router thread */
void router_job_free(void *job);
/* From the handler: the exchange owns it and tells it what happens. */
void router_job_watch(struct router_job *j, double keepalive_seconds);
/* Sync: lock, for those below */
void router_job_start(struct router_job *j, struct router_model *m);
void router_job_wait(struct router_job *j, struct router_model *m);
void router_job_flagged(struct router_job *j);
void router_job_done(struct router_job *j, CURLcode code);
/* Ends one that has not been answered. */
ATTR_PRINTF(3, 4)
void router_job_fail(struct router_job *j, const struct serve_error *e, const char *fmt, ...);
void router_job_flag(struct router_job *j);
void router_jobs_add(struct router_jobs *q, struct router_job *j);
struct router_job *router_jobs_take(struct router_jobs *q);
/* Answers those whose time is up. */
void router_jobs_expire(struct router_model *m, uint64_t now);
bool router_jobs_remove(struct router_jobs *q, const struct router_job *j);

/* preset.c */
struct router_preset *router_presets_find(const struct router_presets *p, const char *id);
MUST_CHECK ingle_status router_presets_new(struct router_presets *p, const char *id,
                                           const char *where, struct router_preset **out,
                                           struct err *err);
/* Whether a value names something on a hub, and no file. */
bool router_is_of_hub(const char *value);
/* Adds a line to problems or warnings. */
void router_presets_line(struct str *to, size_t *n, const char *text);

/* folder.c */
MUST_CHECK ingle_status router_presets_folder(struct router_presets *p, const char *path,
                                              struct err *err);

/* routes.c */
void router_admit(void *arg, struct http_exchange *x, const struct http_request *rq,
                  const char **user);
void router_handle(void *arg, struct http_exchange *x, const struct http_request *rq);
void router_refuse(void *arg, struct http_exchange *x, const struct http_request *rq, int status,
                   const char *reason);

/* list.c.  Sync: lock */
void router_put_models(struct router *r, const struct http_request *rq, struct str *out);
void router_put_model(struct router *r, const struct http_request *rq, const struct router_model *m,
                      struct str *out);
void router_put_props(struct router *r, const struct http_request *rq, struct str *out);
void router_put_ollama(struct router *r, bool running, struct str *out);

/* metrics.c */
void router_put_metrics(struct router *r, const struct router_gather *g, struct str *out);

#endif
