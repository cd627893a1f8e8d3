/* SPDX-License-Identifier: Apache-2.0
 *
 * The router's thread: it owns the processes and all transfers, and sleeps in epoll for sockets of
 * curl, pipes of the processes, and whoever wakes it.  What other threads see of the models is
 * under the lock.
 */
#define _GNU_SOURCE
#include "router/inner.h"
#include "router/job.h"
#include "router/parts.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "server/server.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 64, STOP_S = 5 };

/* ---- curl in epoll ---- */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *mine)
{
    struct router *r = arg;
    struct epoll_event e = {.data.u64 = router_event(ROUTER_ON_CURL, (uint32_t)fd)};
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        (void)epoll_ctl(r->epoll, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    if (what & CURL_POLL_IN)
        e.events |= EPOLLIN;
    if (what & CURL_POLL_OUT)
        e.events |= EPOLLOUT;
    if (epoll_ctl(r->epoll, mine ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &e) &&
        errno == (mine ? ENOENT : EEXIST))
        (void)epoll_ctl(r->epoll, mine ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &e);
    (void)curl_multi_assign(r->multi, fd, r);
    return 0;
}

static int on_timer(CURLM *multi, long ms, void *arg)
{
    struct router *r = arg;
    (void)multi;
    r->timer = ms < 0 ? 0 : clock_now() + (uint64_t)ms * 1000000 + 1;
    return 0;
}

/* Transfers that are over. */
static void take_results(struct router *r)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(r->multi, &left));) {
        struct router_job *j = NULL;
        const CURLcode code = m->data.result;
        if (m->msg != CURLMSG_DONE ||
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &j) != CURLE_OK || !j)
            continue;
        pthread_mutex_lock(&r->lock);
        router_job_done(j, code);
        pthread_mutex_unlock(&r->lock);
    }
}

static void on_curl(struct router *r, int fd, uint32_t events)
{
    int running, mask = 0;
    if (events & EPOLLIN)
        mask |= CURL_CSELECT_IN;
    if (events & EPOLLOUT)
        mask |= CURL_CSELECT_OUT;
    if (events & (EPOLLERR | EPOLLHUP))
        mask |= CURL_CSELECT_IN | CURL_CSELECT_ERR;
    (void)curl_multi_socket_action(r->multi, fd, mask, &running);
}

/* ---- the thread ---- */

/* A model that has just been loaded is asked what it is. */
static void request_info(struct router *r, struct router_model *m)
{
    struct router_job *j = mem_zalloc(sizeof *j);
    struct router_gather *g = mem_zalloc(sizeof *g);
    char *target = mem_strdup("/models");
    if (!j || !g || !target) {
        mem_free(j);
        mem_free(g);
        mem_free(target);
        return;
    }
    str_init(&j->head);
    str_init(&j->reply);
    j->router = r;
    j->rq.method = "GET";
    j->target = target;
    j->gather = g;
    router_job_start(j, m);
}

/* With the lock held: a request goes to its model, or waits for it. */
static void take_job(struct router *r, struct router_job *j)
{
    struct router_model *m = j->model;
    if (atomic_load(&j->closed) || r->stop) {
        router_job_fail(j, &(struct serve_error){.status = 503, .retry_seconds = 5},
                        "the server is stopping");
        return;
    }
    if (router_is_up(m) && !m->waiting.first) {
        router_job_start(j, m);
        return;
    }
    if (j->gather) {
        router_job_fail(j, &(struct serve_error){.status = 503}, "it is not loaded any more");
        return;
    }
    router_job_wait(j, m);
    if (m->waiting.first)
        router_want(r, m);
}

static void take_commands(struct router *r)
{
    for (struct router_job *j; (j = router_jobs_take(&r->incoming));)
        take_job(r, j);
    for (struct router_job *j; (j = r->flagged);) {
        struct http_exchange *x = j->x;
        r->flagged = j->next_flagged;
        j->flagged = false;
        router_job_flagged(j);
        http_release(x);
    }
}

static void stop_all(struct router *r)
{
    for (struct router_model *m = r->models; m; m = m->next) {
        m->requested = false;
        for (struct router_job *j; (j = router_jobs_take(&m->waiting));)
            router_job_fail(j, &(struct serve_error){.status = 503, .retry_seconds = 5},
                            "the server is stopping");
        if (m->state != ROUTER_STOPPING)
            router_unload(r, m, ROUTER_UNLOADED, "the server stops");
        router_child_stop(r, m, STOP_S);
    }
}

static bool any_process(const struct router *r)
{
    for (const struct router_model *m = r->models; m; m = m->next)
        if (m->child.pid)
            return true;
    return false;
}

/* Everything under the lock that is to be done before the next sleep.  *ms: how long that may be.
 * False: it is all over. */
static bool turn(struct router *r, int *ms)
{
    pthread_mutex_lock(&r->lock);
    take_commands(r);
    if (r->stop)
        stop_all(r);
    router_settle(r);
    for (struct router_model *m = r->models; m; m = m->next)
        if (router_is_up(m) && !m->info_requested) {
            m->info_requested = true;
            request_info(r, m);
        }
    const uint64_t now = clock_now();
    uint64_t next = router_next_time(r, now);
    if (r->timer && (!next || r->timer < next))
        next = r->timer;
    *ms = !next ? -1 : next <= now ? 0 : (int)((next - now) / 1000000) + 1;
    const bool done = r->stop && !any_process(r);
    pthread_mutex_unlock(&r->lock);
    return !done;
}

static void on_child(struct router *r, int what, uint32_t number)
{
    pthread_mutex_lock(&r->lock);
    struct router_model *m = router_by_number(r, number);
    if (m)
        router_child_read(r, m, what);
    pthread_mutex_unlock(&r->lock);
}

static void on_event(struct router *r, const struct epoll_event *e)
{
    const int what = (int)(e->data.u64 >> 32);
    const uint32_t number = (uint32_t)e->data.u64;
    uint64_t count;
    if (what == ROUTER_ON_WAKE)
        (void)!read(r->wake, &count, sizeof count);
    else if (what == ROUTER_ON_CURL)
        on_curl(r, (int)number, e->events);
    else
        on_child(r, what, number);
}

static void *router_main(void *arg)
{
    struct router *r = arg;
    struct epoll_event event[EVENTS];
    for (int ms; turn(r, &ms);) {
        int running;
        const int n = epoll_wait(r->epoll, event, EVENTS, ms);
        for (int i = 0; i < n; i++)
            on_event(r, &event[i]);
        if (r->timer && clock_now() >= r->timer) {
            r->timer = 0;
            (void)curl_multi_socket_action(r->multi, CURL_SOCKET_TIMEOUT, 0, &running);
        }
        take_results(r);
    }
    pthread_mutex_lock(&r->lock);
    while (r->active) /* clients that do not read */
        router_job_fail(r->active, &(struct serve_error){.status = 503}, "the server is stopping");
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* ---- the models ---- */

static struct router_model *new_model(struct router *r, struct router_preset *p)
{
    struct router_model *m = mem_zalloc(sizeof *m);
    if (!m)
        return NULL;
    m->number = ++r->n_numbers;
    m->id = p->id;
    m->config = p->config;
    p->id = NULL;
    p->config = NULL;
    m->child.end = m->child.errors = m->child.output = m->child.notices = -1;
    str_init(&m->child.line);
    str_init(&m->child.text);
    return m;
}

static bool same_options(const struct ingle_config *a, const struct ingle_config *b)
{
    size_t n;
    const struct ingle_option *o = ingle_options(&n);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0;; k++) {
            const char *x = ingle_config_text(a, o[i].name, k),
                       *y = ingle_config_text(b, o[i].name, k);
            if (!x && !y)
                break;
            if (!x || !y || strcmp(x, y) != 0)
                return false;
        }
    return true;
}

/* Each line of what was found in presets. */
static void say_lines(const struct router *r, ingle_report_level level, const struct str *lines)
{
    char text[512];
    for (size_t i = 0; i < lines->n && r->o.callbacks.report;) {
        const char *end = memchr(lines->at + i, '\n', lines->n - i);
        const size_t k = end ? (size_t)(end - lines->at) - i : lines->n - i;
        snprintf(text, sizeof text, "%.*s", (int)(k < 500 ? k : 500), lines->at + i);
        r->o.callbacks.report(r->o.callbacks.arg, level, "presets", "", text);
        i += k + 1;
    }
}

ingle_status router_models_read(const struct router *r, struct router_presets *p, struct err *err)
{
    const char *path;
    struct err why;
    ingle_status first = INGLE_OK;
    for (size_t i = 0; (path = ingle_config_text(r->o.config, "models", i)); i++) {
        const ingle_status st = router_presets_add(p, path, r->o.set, r->o.arg, &why);
        if (st && !first)
            first = err_set(err, st, "%s", why.msg);
    }
    if (!first && !p->n)
        first = err_set(err, INGLE_ARG, "there is no model in what '--models' names");
    if (!first)
        first = router_presets_check(p, err);
    say_lines(r, INGLE_REPORT_WARN, &p->warnings);
    if (p->n_problems < 2)
        return first;
    say_lines(r, INGLE_REPORT_ERROR, &p->problems);
    err_set(&why, first, "%s", err->msg);
    return err_set(err, first, "%zu lines of the presets are wrong; the first is %.400s",
                   p->n_problems, why.msg);
}

static struct router_preset *preset_of(const struct router_presets *p, const struct router_model *m)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->at[i].id && strcmp(p->at[i].id, m->id) == 0)
            return &p->at[i];
    return NULL;
}

ingle_status router_models_take(struct router *r, struct router_presets *p, struct err *err)
{
    ingle_status st = INGLE_OK;
    struct router_model **end = &r->models;
    for (struct router_model *m = r->models; m; m = m->next) {
        struct router_preset *same = m->removed ? NULL : preset_of(p, m);
        if (!same && m->pulled)
            continue;
        if (same && same_options(same->config, m->config)) {
            mem_free(same->id);
            same->id = NULL;
        } else if (!m->removed) {
            m->removed = true; /* with other options it is another model */
            router_unload(r, m, ROUTER_UNLOADED, "its preset was changed or removed");
        }
    }
    while (*end)
        end = &(*end)->next;
    for (size_t i = 0; i < p->n; i++) {
        if (!p->at[i].id)
            continue;
        struct router_model *m = new_model(r, &p->at[i]);
        if (!m) {
            st = err_set(err, INGLE_NOMEM, "no memory for the list of models");
            break;
        }
        *end = m;
        end = &m->next;
    }
    router_notify(r, "*", "models_reload", NULL);
    return st;
}

ingle_status router_models_pull(struct router *r, const char *name, struct router_model **out,
                                struct err *err)
{
    enum { MOST_PULLED = 64 };
    struct router_presets p = {0};
    struct router_preset *one;
    struct ingle_error error;
    const char *id = strncmp(name, "hf:", 3) == 0 ? name + 3 : name;
    struct router_model **end = &r->models;
    int n = 0;
    for (; *end; end = &(*end)->next) {
        n += (*end)->pulled;
        const char *own = ingle_config_text((*end)->config, "model", 0);
        if (!(*end)->removed && (strcmp((*end)->id, id) == 0 || (own && strcmp(own, name) == 0))) {
            *out = *end;
            return INGLE_OK;
        }
    }
    if (n >= MOST_PULLED)
        return err_set(err, INGLE_LIMIT,
                       "%d models were fetched for clients since the start, the limit is %d", n,
                       MOST_PULLED);
    ingle_status st = router_presets_new(&p, id, "a client", &one, err);
    if (!st && ingle_config_set(one->config, "serve", "model", name, &error))
        st = err_set(err, error.status, "%s", error.text);
    struct router_model *m = st ? NULL : new_model(r, one);
    router_presets_release(&p);
    if (!st && !m)
        st = err_set(err, INGLE_NOMEM, "no memory for the list of models");
    if (st)
        return st;
    m->pulled = true;
    *end = *out = m;
    router_notify(r, "*", "models_reload", NULL);
    return INGLE_OK;
}

/* The first time: nobody else is there yet. */
static ingle_status read_models(struct router *r, struct err *err)
{
    struct router_presets p = {0};
    ingle_status st = router_models_read(r, &p, err);
    if (!st)
        st = router_models_take(r, &p, err);
    router_presets_release(&p);
    return st;
}

/* ---- the private directory ---- */

static const char PREFIX[] = "ingle-router-", LOCK[] = "lock";

static void remove_directory(const char *path)
{
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            (void)unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    (void)rmdir(path);
}

static int lock_of(const char *path, int flags)
{
    char file[600];
    struct stat is;
    snprintf(file, sizeof file, "%.511s/%s", path, LOCK);
    const int fd = open(file, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &is) == 0 && is.st_nlink)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Those of routers that were killed: nobody holds their locks.  One that is empty may be another
 * router's, which has not locked it yet and then makes another one. */
static void remove_left(const char *parent)
{
    DIR *d = opendir(parent);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[512];
        struct stat is;
        if (strncmp(e->d_name, PREFIX, sizeof PREFIX - 1) != 0)
            continue;
        const int n = snprintf(path, sizeof path, "%s/%s", parent, e->d_name);
        if (n < 0 || (size_t)n >= sizeof path)
            continue;
        if (lstat(path, &is) || !S_ISDIR(is.st_mode) || is.st_uid != geteuid())
            continue;
        const int fd = lock_of(path, 0);
        if (fd < 0) {
            (void)rmdir(path);
            continue;
        }
        remove_directory(path);
        close(fd);
    }
    if (d)
        closedir(d);
}

static ingle_status make_directory(struct router *r, struct err *err)
{
    enum { MOST = 80, TRIES = 10 }; /* a socket's path has 108 bytes */
    char path[160];
    if (strlen(r->o.directory) > MOST)
        return err_set(err, INGLE_LIMIT, "'%s' is too long a path for sockets: at most %d bytes",
                       r->o.directory, MOST);
    remove_left(r->o.directory);
    for (int i = 0; i < TRIES; i++) {
        snprintf(path, sizeof path, "%s/%sXXXXXX", r->o.directory, PREFIX);
        if (!mkdtemp(path))
            return err_set(err, INGLE_IO, "no directory for sockets in '%s': %s", r->o.directory,
                           strerror(errno));
        r->lock_fd = lock_of(path, O_CREAT);
        if (r->lock_fd >= 0)
            break;
        remove_directory(path);
    }
    if (r->lock_fd < 0)
        return err_set(err, INGLE_IO, "'%s' cannot be used for sockets", path);
    r->directory = mem_strdup(path);
    if (r->directory)
        return INGLE_OK;
    remove_directory(path);
    return err_set(err, INGLE_NOMEM, "no memory for a path");
}

/* Each model records its running requests in a directory of its own. */
static ingle_status make_state(const struct router *r, struct err *err)
{
    const char *dir = ingle_config_text(r->o.config, "state-dir", 0);
    struct stat is;
    if (!dir || (stat(dir, &is) == 0 && S_ISDIR(is.st_mode)))
        return INGLE_OK;
    return err_set(err, INGLE_ARG, "'--state-dir %s' is no directory", dir);
}

/* ---- life ---- */

static ingle_status open_loop(struct router *r, struct err *err)
{
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->epoll < 0 || r->wake < 0 || !router_watch(r, r->wake, ROUTER_ON_WAKE, 0))
        return err_set(err, INGLE_IO, "no event loop: %s", strerror(errno));
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK || !(r->multi = curl_multi_init()))
        return err_set(err, INGLE_NOMEM, "libcurl cannot be started");
    if (curl_multi_setopt(r->multi, CURLMOPT_SOCKETFUNCTION, on_socket) ||
        curl_multi_setopt(r->multi, CURLMOPT_SOCKETDATA, r) ||
        curl_multi_setopt(r->multi, CURLMOPT_TIMERFUNCTION, on_timer) ||
        curl_multi_setopt(r->multi, CURLMOPT_TIMERDATA, r))
        return err_set(err, INGLE_NOMEM, "libcurl cannot be started");
    return INGLE_OK;
}

static ingle_status start_thread(struct router *r, struct err *err)
{
    for (struct router_model *m = r->models; m; m = m->next)
        if (router_flag(r, m, "preload"))
            router_request_load(r, m, true);
    if (!pool_thread(&r->thread, router_main, r))
        return err_set(err, INGLE_IO, "no thread for the router");
    r->thread_runs = true;
    return INGLE_OK;
}

ingle_status router_open(struct router **out, const struct router_options *o, struct err *err)
{
    const struct http_options calls = {
        .admit = router_admit, .handle = router_handle, .refuse = router_refuse};
    struct router *r = mem_zalloc(sizeof *r);
    if (!r || pthread_mutex_init(&r->lock, NULL)) {
        mem_free(r);
        return err_set(err, INGLE_NOMEM, "no memory for the router");
    }
    r->o = *o;
    r->epoll = r->wake = r->lock_fd = -1;
    r->models_max = (int)ingle_config_number(o->config, "models-max");
    r->max_waiting = (size_t)ingle_config_number(o->config, "max-waiting");
    for (int i = 0; i < o->n_listeners; i++) /* they are not for the models */
        (void)fcntl(o->listener[i], F_SETFD, FD_CLOEXEC);
    r->address.sink =
        (struct report_sink){.report = o->callbacks.report, .arg = o->callbacks.arg};
    ingle_status st = address_open(&r->address, o->config, o->listener, o->n_listeners, err);
    if (!st)
        st = read_models(r, err);
    if (!st && ingle_config_flag(o->config, "page-pull") &&
        ingle_config_flag(o->config, "insecure-no-auth"))
        st = err_set(err, INGLE_ARG,
                     "--page-pull lets clients fill the disk: not with --insecure-no-auth, give "
                     "--api-key-file");
    if (!st)
        st = make_state(r, err);
    if (!st)
        st = make_directory(r, err);
    if (!st)
        st = open_loop(r, err);
    r->serve.config = o->config;
    r->serve.callbacks = o->callbacks;
    r->serve.auth = r->address.auth;
    r->serve.created = (int64_t)time(NULL);
    atomic_store(&r->serve.phase, SERVE_READY);
    struct http_options h = calls;
    h.arg = r;
    if (!st && ingle_config_is_set(o->config, "metrics-address"))
        st = err_set(err, INGLE_ARG,
                     "'--metrics-address' is for a server with one model, not for --models");
    if (!st)
        st = address_listen(&r->address, &h, &r->http, err);
    r->serve.http = r->http;
    if (!st)
        st = start_thread(r, err);
    if (st) {
        router_close(r);
        return st;
    }
    *out = r;
    return INGLE_OK;
}

void router_set_away(struct router *r, bool away) { atomic_store(&r->serve.away, away); }

bool router_renew_keys(struct router *r) { return address_renew_keys(&r->address); }

void router_set_lingering(struct router *r)
{
    atomic_store(&r->serve.lingering, true);
    http_let_go(r->http);
}

void router_drain(struct router *r)
{
    const uint64_t end = serve_close_address(&r->serve);
    pthread_mutex_lock(&r->lock);
    router_unlisten(r);
    pthread_mutex_unlock(&r->lock);
    http_wait(r->http, false, end);
    http_hurry(r->http);
    pthread_mutex_lock(&r->lock);
    r->stop = true; /* the processes end what they have, in their own words */
    pthread_mutex_unlock(&r->lock);
    router_wake(r);
    http_wait(r->http, false, clock_now() + SERVE_LAST_NS);
}

void router_close(struct router *r)
{
    if (!r)
        return;
    if (r->thread_runs) {
        pthread_mutex_lock(&r->lock);
        r->stop = true;
        router_unlisten(r);
        pthread_mutex_unlock(&r->lock);
        router_wake(r);
        pthread_join(r->thread, NULL);
    }
    if (r->http)
        http_stop_handlers(r->http);
    pthread_mutex_lock(&r->lock); /* the thread has ended: what came since is answered here */
    if (r->thread_runs)
        take_commands(r);
    pthread_mutex_unlock(&r->lock);
    http_close(r->http);
    for (struct router_job *j; (j = r->flagged);) {
        r->flagged = j->next_flagged;
        http_release(j->x);
    }
    for (struct router_model *m; (m = r->models);) {
        r->models = m->next;
        router_model_free(m);
    }
    if (r->multi)
        (void)curl_multi_cleanup(r->multi);
    if (r->directory)
        remove_directory(r->directory);
    mem_free(r->directory);
    const int fd[] = {r->lock_fd, r->wake, r->epoll};
    for (size_t i = 0; i < sizeof fd / sizeof *fd; i++)
        if (fd[i] >= 0)
            close(fd[i]);
    address_close(&r->address);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

void router_describe(struct router *r, struct server_info *out)
{
    struct http_counters now = {0};
    if (r->http)
        http_counters(r->http, &now);
    *out = (struct server_info){.model = "", .n_running = now.n_exchanges};
    address_describe(&r->address, r->http, out);
}
