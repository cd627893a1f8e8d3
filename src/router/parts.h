/*
 * parts - inside the room: what each file of the router has for the others.
 */
#ifndef INGLE_ROUTER_PARTS_H
#define INGLE_ROUTER_PARTS_H

#include "router/inner.h"
#include "router/job.h"

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
/* The state has changed: listeners are notified. */
void router_set_state(struct router *r, struct router_model *m, enum router_state state);
void router_model_free(struct router_model *m);
double router_number(const struct router *r, const struct router_model *m, const char *option);
const char *router_text(const struct router *r, const struct router_model *m, const char *option,
                        size_t i);
bool router_flag(const struct router *r, const struct router_model *m, const char *option);
/* Fills m->arg with the command line; memory_bytes 0: no limit. */
MUST_CHECK bool router_arguments(struct router *r, struct router_model *m, uint64_t memory_bytes,
                                 bool plan);
/* Notifies listeners. */
void router_notify(struct router *r, const char *id, const char *event,
                   const struct router_model *m);
bool router_listen(struct router *r, struct http_exchange *x);
void router_unlisten(struct router *r);

/* child.c.  Sync: lock */
MUST_CHECK ingle_status router_child_start(struct router *r, struct router_model *m, bool plan,
                                           struct err *err);
void router_child_stop(struct router *r, struct router_model *m, double seconds);
void router_child_read(struct router *r, struct router_model *m, int what);
/* True: it has ended; *code is its exit status, or 128 and the signal. */
/* Checks which processes are ending, for a list of those that run; the router's thread learns of
 * their ends by itself. */
void router_children_check(const struct router *r);
bool router_child_ended(struct router *r, struct router_model *m, int *code);
/* Closes what is left of it. */
void router_child_clear(struct router *r, struct router_model *m);

/* start.c.  Sync: lock */
void router_request_load(struct router *r, struct router_model *m, bool preload);
/* A request waits for m: it is loaded as long as one does. */
void router_want(struct router *r, struct router_model *m);
void router_unload(struct router *r, struct router_model *m, enum router_state then,
                   const char *why);
void router_settle(struct router *r);
/* The time of the next thing that router_settle() has to do; 0: none. */
uint64_t router_next_time(const struct router *r, uint64_t now);

/* proxy.c; router thread */
void router_job_free(void *job);
/* From the handler: the exchange owns it and reports to it. */
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
