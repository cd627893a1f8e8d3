/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ingle daemon: commands on standard input, events on standard output, one JSON object a
 * line (docs/use/daemon.md).  The main thread reads commands; events are written by whichever
 * thread has them, a line at a time.
 */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/talk.h"
#include "cli/hub.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/near.h"
#include "base/num.h"
#include "base/pool.h"
#include "base/write.h"
#include "server/params.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { PARALLEL = 4, MOST_SESSIONS = 1024, MOST_NAME = 128, MOST_STOPS = 64, MOST_LINE = 64 << 20 };

/* A timeline by its name: the tokens before the prompt. */
struct named {
    struct named *next;
    char name[MOST_NAME + 1];
    int32_t *token; /* [n] */
    size_t n, cap;
    bool busy; /* an answer is being written */
    struct ingle_way way; /* how it was computed; "": as --sparse and --kv-select say */
};

/* An answer that is being written. */
struct job {
    struct job *next;
    struct daemon *d;
    char id[MOST_NAME + 1];
    struct named *session;      /* NULL: none */
    struct ingle_request *request;
    struct ingle_reader *reader;
    struct ingle_grammar *grammar; /* NULL: the answer is free */
    int32_t *token;             /* [n]: the prompt and what came after it */
    size_t n, cap, n_prompt;
    /* While its prompt is shortened, on a thread of its own: */
    pthread_t thread;
    bool has_thread;
    atomic_bool stop; /* Sync: atomic; nobody wants it any more */
    struct chat_request r; /* only what params.h reads */
    struct ingle_shortened kept; /* of the prompt */
    double keep;
    char method[32]; /* r.o.draft_method */
    bool ignore_end; /* end-of-generation tokens show nothing, and the answer goes on */
    bool finished;   /* nothing more will be computed */
    bool done; /* and nothing more said: it may be freed */
    enum ingle_end reader_end;
    enum ingle_finish finish;
    struct ingle_error error;
};

struct daemon {
    struct cli *c;
    struct ingle_model *model;
    struct ingle_engine *engine; /* NULL: parked */
    struct ingle_scheduler *scheduler;
    pthread_mutex_t lock;  /* jobs, sessions and standard output */
    pthread_cond_t ended;  /* a job is done */
    struct job *jobs;      /* Sync: lock */
    struct named *sessions;/* Sync: lock */
    size_t n_sessions;
    atomic_bool deaf; /* Sync: atomic; nobody reads the events */
    bool quit;
};

/* ---- events ---- */

/* {"id": ..., "event": ...: further members are added, then send() ends and writes it. */
static void begin_event(struct str *s, const char *id, const char *event)
{
    cli_json(s);
    write_open(s, '{');
    if (id && id[0])
        write_member(s, "id", id);
    write_member(s, "event", event);
}

static void send(struct daemon *d, struct str *s)
{
    str_adds(s, "}\n");
    pthread_mutex_lock(&d->lock);
    if (str_ok(s))
        fwrite(s->at, 1, s->n, stdout);
    cli_push(d->c);
    if (d->c->write_error || ferror(stdout))
        atomic_store(&d->deaf, true);
    pthread_mutex_unlock(&d->lock);
    str_release(s);
}

static void send_error(struct daemon *d, const char *id, const char *text)
{
    struct str s;
    begin_event(&s, id, "error");
    write_member(&s, "error", text);
    send(d, &s);
}

static void send_done(struct daemon *d, const char *id, const char *what)
{
    struct str s;
    begin_event(&s, id, what);
    send(d, &s);
}

/* ---- a command's members ---- */

/* What a command line says; the first thing wrong stays in err. */
struct command {
    struct json_object *o;
    struct err err;
    bool failed;
};

static struct json_object *member(struct command *c, const char *key, enum json_type type,
                                  const char *what)
{
    struct json_object *v;
    if (!json_object_object_get_ex(c->o, key, &v) || !v)
        return NULL;
    const bool number = type == json_type_double && json_object_is_type(v, json_type_int);
    if (json_object_is_type(v, type) || number)
        return v;
    if (!c->failed)
        (void)err_set(&c->err, INGLE_ARG, "'%s' is %.40s, expected %s", key,
                      json_object_to_json_string(v), what);
    c->failed = true;
    return NULL;
}

static const char *text_of(struct command *c, const char *key)
{
    struct json_object *v = member(c, key, json_type_string, "a string");
    if (v && strlen(json_object_get_string(v)) != (size_t)json_object_get_string_len(v) &&
        !c->failed) {
        (void)err_set(&c->err, INGLE_ARG, "'%s' has a NUL byte", key);
        c->failed = true;
    }
    return v && !c->failed ? json_object_get_string(v) : NULL;
}

/* A name of at most MOST_NAME bytes, none of them 0, into out; "" if it is not there. */
static void name_of(struct command *c, const char *key, char out[MOST_NAME + 1])
{
    struct json_object *o = member(c, key, json_type_string, "a string");
    const char *v = o ? json_object_get_string(o) : NULL;
    const size_t n = o ? (size_t)json_object_get_string_len(o) : 0;
    out[0] = 0;
    if (c->failed || !v)
        return;
    if (n > MOST_NAME)
        (void)err_set(&c->err, INGLE_ARG, "'%s' has %zu bytes, at most %d are allowed", key, n,
                      MOST_NAME);
    else if (memchr(v, 0, n))
        (void)err_set(&c->err, INGLE_ARG, "'%s' has a NUL byte", key);
    else
        memcpy(out, v, n + 1);
    c->failed = !out[0] && n;
}

static bool flag_of(struct command *c, const char *key, bool fallback)
{
    struct json_object *v = member(c, key, json_type_boolean, "true or false");
    return v ? json_object_get_boolean(v) : fallback;
}

static const struct {
    const char *what, *members; /* besides do and id */
} commands[] = {{"generate", "session messages prompt tokens tools tool_choice thinking effort "
                             "seed stop draft_method grammar json_schema json_object regex"},
                {"cancel", ""},
                {"reset", "session"},
                {"save", "session file"},
                {"load", "session file"},
                {"park", ""},
                {"unpark", ""},
                {"status", ""},
                {"quit", ""}};

/* Refuses a member that the command does not read: a wish that is spelt wrong would be lost. */
static void check_members(struct command *c, const char *what)
{
    char list[160];
    const char *word[96];
    size_t n = 0, i = 0;
    while (i < sizeof commands / sizeof *commands && strcmp(commands[i].what, what) != 0)
        i++;
    if (i == sizeof commands / sizeof *commands)
        return; /* is refused itself */
    snprintf(list, sizeof list, "do id %s", commands[i].members);
    char *rest;
    for (char *w = strtok_r(list, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        word[n++] = w;
    for (size_t k = 0; i == 0 && n < sizeof word / sizeof *word; k++) {
        if (!(word[n] = params_name(PARAMS_DAEMON, k)))
            break;
        n++;
    }
    json_object_object_foreach(c->o, key, unused)
    {
        (void)unused;
        size_t k = 0;
        while (k < n && strcmp(word[k], key) != 0)
            k++;
        if (k < n || c->failed)
            continue;
        const char *meant = near_word(word, n, key);
        (void)err_set(&c->err, INGLE_ARG, "'%.40s' is no member of '%s'%s%s%s", key, what,
                      meant ? "; did you mean '" : "", meant ? meant : "", meant ? "'?" : "");
        c->failed = true;
    }
}

/* ---- sessions ---- */

/* With the lock held. */
static struct named *find_session(const struct daemon *d, const char *name)
{
    struct named *s = d->sessions;
    while (s && strcmp(s->name, name) != 0)
        s = s->next;
    return s;
}

/* The session of that name, made if need be; NULL after saying why in err. */
static struct named *need_session(struct daemon *d, const char *name, struct err *err)
{
    pthread_mutex_lock(&d->lock);
    struct named *s = find_session(d, name);
    if (!s && d->n_sessions >= MOST_SESSIONS)
        (void)err_set(err, INGLE_LIMIT, "there are %d sessions already; reset one", MOST_SESSIONS);
    else if (!s && !(s = mem_zalloc(sizeof *s)))
        (void)err_set(err, INGLE_NOMEM, "no memory for a session");
    else if (!s->name[0]) {
        memcpy(s->name, name, strlen(name) + 1);
        s->next = d->sessions;
        d->sessions = s;
        d->n_sessions++;
    } else if (s->busy) {
        (void)err_set(err, INGLE_ARG, "session '%s' is being answered", name);
        s = NULL;
    }
    pthread_mutex_unlock(&d->lock);
    return s;
}

static void drop_session(struct daemon *d, struct named *s);

/* The command failed: a session that it made is none. */
static void leave_session(struct daemon *d, struct named *s)
{
    if (!s)
        return;
    s->busy = false;
    if (!s->n)
        drop_session(d, s);
}

static void drop_session(struct daemon *d, struct named *s)
{
    pthread_mutex_lock(&d->lock);
    struct named **at = &d->sessions;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    d->n_sessions--;
    pthread_mutex_unlock(&d->lock);
    mem_free(s->token);
    mem_free(s);
}

/* ---- an answer: on the scheduler's thread ---- */

static void on_begin(void *arg, const struct ingle_reuse *reuse)
{
    const struct job *j = arg;
    struct str s;
    begin_event(&s, j->id, "begin");
    write_member_uint(&s, "prompt_tokens", j->n_prompt);
    write_member_int(&s, "reused_tokens", reuse->kept);
    if (reuse->why[0])
        write_member(&s, "why", reuse->why);
    send(j->d, &s);
}

static void on_progress(void *arg, int64_t n_done, int64_t n_prompt)
{
    const struct job *j = arg;
    struct str s;
    begin_event(&s, j->id, "progress");
    write_member_int(&s, "done", n_done);
    write_member_int(&s, "total", n_prompt);
    send(j->d, &s);
}

static void on_event(void *arg, enum ingle_event_kind kind, int call, const char *text, size_t n)
{
    static const char *const name[] = {"text", "thought", "call", "arguments", "call_end",
                                       "call_cut"};
    const struct job *j = arg;
    struct str s;
    begin_event(&s, j->id, name[kind]);
    if (call >= 0)
        write_member_int(&s, "call", call);
    if (kind == INGLE_EVENT_CALL_BEGIN)
        write_member_string(&s, "name", text, n);
    else if (kind != INGLE_EVENT_CALL_END && kind != INGLE_EVENT_CALL_CUT)
        write_member_string(&s, "text", text, n);
    send(j->d, &s);
}

static int on_token(void *arg, int index, const struct ingle_drawn *t)
{
    struct job *j = arg;
    (void)index;
    if (mem_grow(&j->token, &j->cap, j->n + 1, sizeof *j->token))
        j->token[j->n++] = t->id;
    if (j->r.keep_tokens) {
        struct str s;
        begin_event(&s, j->id, "token");
        write_member_int(&s, "token", t->id);
        send(j->d, &s);
    }
    if (j->ignore_end && ingle_model_is_end(j->d->model, t->id))
        return atomic_load(&j->d->deaf);
    if (ingle_reader_token(j->reader, t->id, &j->reader_end, &j->error))
        return 1;
    return j->reader_end == INGLE_END_STOP || atomic_load(&j->d->deaf);
}

static void on_end(void *arg, int index, enum ingle_finish why, const struct ingle_error *error)
{
    struct job *j = arg;
    (void)index;
    j->finish = why;
    if (why == INGLE_FINISH_ERROR && error)
        j->error = *error;
    if (j->reader_end == INGLE_END_NONE)
        (void)ingle_reader_finish(j->reader, &j->error);
}

static const char *finish_word(const struct job *j)
{
    switch (j->finish) {
    case INGLE_FINISH_END: return "stop";
    case INGLE_FINISH_ASKED: return j->reader_end == INGLE_END_STOP ? "stop" : "error";
    case INGLE_FINISH_LENGTH: return "length";
    case INGLE_FINISH_CANCEL: return "cancelled";
    case INGLE_FINISH_DEADLINE: return "deadline";
    case INGLE_FINISH_BUSY: return "busy";
    case INGLE_FINISH_ERROR: break;
    }
    return "error";
}

/* The session goes on after what was computed; an end-of-generation token is no part of it. */
static void say_way(struct ingle_request_options *o, const struct ingle_way *way)
{
    for (int k = 0; k < INGLE_WAYS; k++)
        o->way[k] = way->text[k][0] ? way->text[k] : NULL;
}

static void keep_tokens(struct job *j)
{
    struct named *s = j->session;
    if (j->n && j->finish == INGLE_FINISH_END &&
        ingle_model_is_end(j->d->model, j->token[j->n - 1]))
        j->n--;
    mem_free(s->token);
    s->token = j->token;
    s->n = j->n;
    s->cap = j->cap;
    s->busy = false;
    s->way = j->r.way;
    j->token = NULL;
}

static void on_done(void *arg, const struct ingle_usage *u)
{
    struct job *j = arg;
    struct daemon *d = j->d;
    struct str s;
    const int64_t n_prompt = u->n_prompt + u->n_skipped;
    /* Whoever reads the end may use the session at once. */
    pthread_mutex_lock(&d->lock);
    if (j->session)
        keep_tokens(j);
    j->finished = true;
    pthread_mutex_unlock(&d->lock);
    begin_event(&s, j->id, "end");
    write_member(&s, "finish", finish_word(j));
    if (strcmp(finish_word(j), "error") == 0)
        write_member(&s, "error", j->error.text);
    write_member_int(&s, "prompt_tokens", n_prompt);
    write_member_int(&s, "computed_tokens", u->n_prompt);
    write_member_int(&s, "reused_tokens", u->reuse.kept);
    write_member_int(&s, "tokens", u->n_generated);
    write_member_fixed(&s, "queue_s", 6, u->queue_seconds);
    write_member_fixed(&s, "prompt_s", 6, u->prefill_seconds);
    write_member_fixed(&s, "answer_s", 6, u->decode_seconds);
    write_member_int(&s, "drafted", u->n_drafted);
    write_member_int(&s, "accepted", u->n_accepted);
    write_member_fixed(&s, "draft_saved_s", 6, u->draft_saved_seconds);
    cli_add_sparse(&s, &u->way.sparse);
    cli_add_select(&s, &u->way.select);
    cli_add_pages(&s, &u->pages);
    send(d, &s);
    pthread_mutex_lock(&d->lock);
    j->done = true;
    pthread_cond_broadcast(&d->ended);
    pthread_mutex_unlock(&d->lock);
}

/* ---- generate ---- */

static void free_job(struct job *j)
{
    if (j->has_thread)
        pthread_join(j->thread, NULL);
    ingle_shortened_release(&j->kept);
    ingle_reader_close(j->reader);
    ingle_grammar_close(j->grammar);
    request_release(&j->r);
    mem_free(j->token);
    mem_free(j);
}

/* Frees what is done; with `all`, waits until nothing runs. */
static void reap(struct daemon *d, bool all)
{
    pthread_mutex_lock(&d->lock);
    for (struct job **at = &d->jobs; *at;) {
        struct job *j = *at;
        while (all && !j->done)
            pthread_cond_wait(&d->ended, &d->lock);
        if (j->done) {
            *at = j->next;
            free_job(j);
        } else {
            at = &j->next;
        }
    }
    pthread_mutex_unlock(&d->lock);
}

static ingle_status add_ids(struct job *j, const int32_t *ids, size_t n, struct ingle_error *error)
{
    if (!mem_grow(&j->token, &j->cap, j->n + n + 1, sizeof *j->token)) {
        *error = (struct ingle_error){INGLE_NOMEM, "no memory for the prompt"};
        return INGLE_NOMEM;
    }
    if (n)
        memcpy(j->token + j->n, ids, n * sizeof *ids);
    j->n += n;
    return INGLE_OK;
}

/* The tools, unless none may be called. */
static struct json_object *shown_tools(struct command *c)
{
    struct json_object *tools = member(c, "tools", json_type_array, "an array of tools");
    const char *choice = text_of(c, "tool_choice");
    return choice && strcmp(choice, "none") == 0 ? NULL : tools;
}

static ingle_status add_messages(struct job *j, struct command *c, struct json_object *messages,
                                 bool *open_thought, struct ingle_error *error)
{
    struct json_object *tools = shown_tools(c);
    struct ingle_prompt p = {0};
    struct ingle_chat chat = {
        .messages = json_object_to_json_string_ext(messages, JSON_C_TO_STRING_NOSLASHESCAPE),
        .thinking = flag_of(c, "thinking", ingle_config_flag(j->d->c->config, "think")),
        .developer_own = cli_developer_own(j->d->c),
        .effort = text_of(c, "effort")};
    chat.n_messages = strlen(chat.messages);
    if (tools) {
        chat.tools = json_object_to_json_string_ext(tools, JSON_C_TO_STRING_NOSLASHESCAPE);
        chat.n_tools = strlen(chat.tools);
    }
    ingle_status st = ingle_chat_render(j->d->model, &chat, &p, error);
    j->n = 0; /* a conversation is whole: what the session had is found again in the cache */
    if (!st)
        st = add_ids(j, p.ids, p.n_ids, error);
    *open_thought = p.open_thought;
    ingle_prompt_release(&p);
    return st;
}

static ingle_status add_tokens(struct job *j, struct json_object *list, struct ingle_error *error)
{
    const size_t n = json_object_array_length(list);
    ingle_status st = INGLE_OK;
    for (size_t i = 0; i < n && !st; i++) {
        struct json_object *v = json_object_array_get_idx(list, i);
        const int64_t id = json_object_get_int64(v);
        if (!json_object_is_type(v, json_type_int) || id < 0 || id > INT32_MAX) {
            *error = (struct ingle_error){.status = INGLE_ARG};
            snprintf(error->text, sizeof error->text,
                     "'tokens' has %.40s at %zu, expected a token id",
                     json_object_to_json_string(v), i);
            return INGLE_ARG;
        }
        const int32_t token = (int32_t)id;
        st = add_ids(j, &token, 1, error);
    }
    return st;
}

/* The prompt from exactly one of messages, prompt, tokens, after what the session holds. */
static ingle_status make_prompt(struct job *j, struct command *c, bool *raw, bool *open_thought,
                                struct ingle_error *error)
{
    struct json_object *messages = member(c, "messages", json_type_array, "an array of messages");
    struct json_object *tokens = member(c, "tokens", json_type_array, "an array of token ids");
    struct json_object *prompt = member(c, "prompt", json_type_string, "a string");
    *raw = !messages;
    if (c->failed || (messages != NULL) + (tokens != NULL) + (prompt != NULL) != 1) {
        *error =
            (struct ingle_error){INGLE_ARG, "one of 'messages', 'prompt' and 'tokens' is needed"};
        return INGLE_ARG;
    }
    ingle_status st = INGLE_OK;
    if (j->session)
        st = add_ids(j, j->session->token, j->session->n, error);
    if (st)
        return st;
    if (messages)
        return add_messages(j, c, messages, open_thought, error);
    if (tokens)
        return add_tokens(j, tokens, error);
    int32_t *ids;
    size_t n;
    st = ingle_tokenize(j->d->model, json_object_get_string(prompt),
                        (size_t)json_object_get_string_len(prompt),
                        (j->n ? 0 : INGLE_ADD_SPECIAL) | INGLE_PARSE_SPECIAL, &ids, &n, error);
    if (st)
        return st;
    st = add_ids(j, ids, n, error);
    ingle_free(ids);
    return st;
}

/* What is one value. */
static void read_params(struct job *j, struct command *c)
{
    const struct ingle_config *config = j->d->c->config;
    struct fault f = {.expects = true};
    struct ingle_request_options *o = &j->r.o;
    o->max_tokens = (int64_t)ingle_config_number(config, "predict");
    o->ignore_end = ingle_config_flag(config, "ignore-eos");
    ingle_config_sampling(config, &o->sampling);
    params_read(&j->r, c->o, PARAMS_DAEMON, &f);
    if (f.kind && !c->failed) {
        (void)err_set(&c->err, INGLE_ARG, "%s", f.message);
        c->failed = true;
    }
    struct json_object *seed = member(c, "seed", json_type_int, "an integer");
    if (seed)
        o->sampling.seed = json_object_get_uint64(seed);
    const char *method = text_of(c, "draft_method");
    if (method && snprintf(j->method, sizeof j->method, "%s", method) >= 0)
        o->draft_method = j->method;
    say_way(o, &j->r.way);
}

static ingle_status open_reader(struct job *j, struct command *c, bool raw, bool open_thought,
                                struct ingle_error *error)
{
    const char *stop[MOST_STOPS];
    struct json_object *list = member(c, "stop", json_type_array, "an array of strings");
    struct ingle_reader_options o = {.raw = raw, .open_thought = open_thought, .stop = stop};
    struct json_object *tools = shown_tools(c);
    o.tools = tools && json_object_array_length(tools);
    o.n_stop = list ? json_object_array_length(list) : 0;
    if (o.n_stop > MOST_STOPS) {
        *error = (struct ingle_error){.status = INGLE_ARG};
        snprintf(error->text, sizeof error->text, "'stop' has %zu strings, at most %d are allowed",
                 o.n_stop, MOST_STOPS);
        return INGLE_ARG;
    }
    for (size_t i = 0; i < o.n_stop; i++) {
        struct json_object *v = json_object_array_get_idx(list, i);
        if (!json_object_is_type(v, json_type_string)) {
            *error = (struct ingle_error){.status = INGLE_ARG};
            snprintf(error->text, sizeof error->text, "'stop' has %.40s at %zu, expected a string",
                     json_object_to_json_string(v), i);
            return INGLE_ARG;
        }
        stop[i] = json_object_get_string(v);
    }
    return ingle_reader_open(&j->reader, j->d->model, &o, on_event, j, error);
}

static ingle_status refuse(struct ingle_error *error, const char *a, const char *b)
{
    *error = (struct ingle_error){.status = INGLE_ARG};
    snprintf(error->text, sizeof error->text, "'%s' and '%s' exclude each other", a, b);
    return INGLE_ARG;
}

/* What a call must look like when tool_choice asks for one. */
static ingle_status force_call(struct job *j, struct command *c, const char *choice,
                               struct ingle_error *error)
{
    struct json_object *tools = member(c, "tools", json_type_array, "an array of tools");
    struct str s;
    if (!tools) {
        *error = (struct ingle_error){INGLE_ARG, "'tool_choice' needs 'tools'"};
        return INGLE_ARG;
    }
    str_init(&s);
    write_open(&s, '{');
    write_key(&s, "tools");
    str_adds(&s, json_object_to_json_string_ext(tools, JSON_C_TO_STRING_NOSLASHESCAPE));
    write_member(&s, "choice", choice);
    write_close(&s, '}');
    const ingle_status st =
        ingle_grammar_open(&j->grammar, j->d->model, INGLE_GRAMMAR_TOOLS, s.at, s.n, error);
    str_release(&s);
    return st;
}

/* At most one of the members that say what the answer must look like. */
static ingle_status read_grammar(struct job *j, struct command *c, struct ingle_error *error)
{
    static const struct {
        const char *key;
        enum ingle_grammar_kind kind;
        enum json_type type;
        const char *what;
    } form[] = {{"grammar", INGLE_GRAMMAR_GBNF, json_type_string, "a string"},
                {"json_schema", INGLE_GRAMMAR_JSON_SCHEMA, json_type_object, "a schema"},
                {"json_object", INGLE_GRAMMAR_JSON, json_type_boolean, "true or false"},
                {"regex", INGLE_GRAMMAR_REGEX, json_type_string, "a string"}};
    const char *choice = text_of(c, "tool_choice"), *first = NULL;
    ingle_status st = INGLE_OK;
    for (size_t i = 0; i < sizeof form / sizeof *form && !st; i++) {
        struct json_object *v = member(c, form[i].key, form[i].type, form[i].what);
        if (!v || (form[i].kind == INGLE_GRAMMAR_JSON && !json_object_get_boolean(v)))
            continue;
        if (first)
            return refuse(error, first, form[i].key);
        first = form[i].key;
        const bool is_string = form[i].type == json_type_string;
        const char *text = is_string
                               ? json_object_get_string(v)
                               : json_object_to_json_string_ext(v, JSON_C_TO_STRING_NOSLASHESCAPE);
        const size_t n = is_string ? (size_t)json_object_get_string_len(v) : strlen(text);
        const bool none = form[i].kind == INGLE_GRAMMAR_JSON;
        st = ingle_grammar_open(&j->grammar, j->d->model, form[i].kind, none ? NULL : text,
                                none ? 0 : n, error);
    }
    if (st || !choice || strcmp(choice, "auto") == 0 || strcmp(choice, "none") == 0)
        return st;
    return first ? refuse(error, first, "tool_choice") : force_call(j, c, choice, error);
}

static bool is_unwanted(void *arg)
{
    const struct job *j = arg;
    return atomic_load(&j->stop) || atomic_load(&j->d->deaf);
}

/* A part of the prompt is left out before it is asked.  Once it is, only the scheduler has the
 * job. */
static void *shorten(void *arg)
{
    struct job *j = arg;
    struct daemon *d = j->d;
    struct ingle_error error;
    const struct ingle_shorten_options how = {.keep = j->keep, .stop = is_unwanted, .arg = j};
    ingle_status st = ingle_shorten(d->engine, j->token, (int64_t)j->n, &how, &j->kept, &error);
    pthread_mutex_lock(&d->lock); /* for cancel() */
    if (!st && atomic_load(&j->stop))
        st = INGLE_CANCEL;
    if (!st && j->kept.n) {
        j->r.o.prompt = j->kept.ids;
        j->r.o.position = j->kept.position;
        j->r.o.n_prompt = j->kept.n;
    }
    if (!st)
        st = ingle_scheduler_submit(d->scheduler, &j->r.o, &j->request, NULL, &error);
    pthread_mutex_unlock(&d->lock);
    if (!st)
        return NULL;
    on_end(j, 0, st == INGLE_CANCEL ? INGLE_FINISH_CANCEL : INGLE_FINISH_ERROR, &error);
    on_done(j, &(struct ingle_usage){.n_prompt = (int64_t)j->n_prompt});
    return NULL;
}

/* Whether it goes on a thread of its own. */
static bool may_shorten(const struct job *j)
{
    struct ingle_shortener_info i;
    ingle_shortener(j->d->engine, &i);
    return j->keep < 1 && (j->keep > 0 || *i.path) && (int64_t)j->n >= i.from;
}

static ingle_status start_job(struct job *j, struct command *c, struct ingle_error *error)
{
    struct daemon *d = j->d;
    bool raw = false, open_thought = false;
    struct ingle_request_options *o = &j->r.o;
    o->begin = on_begin;
    o->progress = on_progress;
    o->token = on_token;
    o->end = on_end;
    o->done = on_done;
    o->arg = j;
    read_params(j, c);
    ingle_status st = make_prompt(j, c, &raw, &open_thought, error);
    if (!st)
        st = open_reader(j, c, raw, open_thought, error);
    if (!st)
        st = read_grammar(j, c, error);
    if (c->failed) {
        *error = (struct ingle_error){.status = c->err.status};
        snprintf(error->text, sizeof error->text, "%s", c->err.msg);
        return c->err.status;
    }
    if (st)
        return st;
    j->ignore_end = o->ignore_end && !j->grammar;
    o->grammar = j->grammar;
    o->prompt = j->token;
    o->n_prompt = (int64_t)j->n;
    j->n_prompt = j->n;
    struct json_object *tools = member(c, "tools", json_type_array, "an array of tools");
    const bool has_tools = tools && json_object_array_length(tools);
    o->sampling.no_calls = !raw && !has_tools;
    /* beside tools and grammars only if it is requested */
    j->keep = j->r.keep_requested ? j->r.prompt_keep : j->grammar || has_tools ? 1 : 0;
    pthread_mutex_lock(&d->lock);
    j->next = d->jobs;
    d->jobs = j;
    pthread_mutex_unlock(&d->lock);
    if (may_shorten(j)) {
        j->has_thread = pool_thread(&j->thread, shorten, j);
        if (j->has_thread)
            return INGLE_OK;
    }
    st = ingle_scheduler_submit(d->scheduler, o, &j->request, NULL, error);
    if (st) {
        pthread_mutex_lock(&d->lock);
        d->jobs = j->next;
        pthread_mutex_unlock(&d->lock);
    }
    return st;
}

static void generate(struct daemon *d, struct command *c, const char *id, const char *name)
{
    struct ingle_error error = {0};
    struct err err;
    struct job *j = mem_zalloc(sizeof *j);
    if (!j) {
        send_error(d, id, "no memory for an answer");
        return;
    }
    struct ingle_sampling defaults;
    ingle_sampling_defaults(d->model, &defaults);
    request_init(&j->r, &defaults);
    j->d = d;
    memcpy(j->id, id, strlen(id) + 1);
    if (name[0] && !(j->session = need_session(d, name, &err))) {
        send_error(d, id, err.msg);
        free_job(j);
        return;
    }
    if (j->session)
        j->session->busy = true;
    if (start_job(j, c, &error)) {
        leave_session(d, j->session);
        send_error(d, id, error.text);
        free_job(j);
    }
}

/* ---- the other commands ---- */

static void cancel(struct daemon *d, const char *id)
{
    bool found = false;
    pthread_mutex_lock(&d->lock);
    for (struct job *j = d->jobs; j; j = j->next)
        if (!j->finished && (j->request || j->has_thread) && strcmp(j->id, id) == 0) {
            atomic_store(&j->stop, true);
            if (j->request)
                ingle_request_cancel(d->scheduler, j->request);
            found = true;
        }
    pthread_mutex_unlock(&d->lock);
    if (!found)
        send_error(d, id, "no answer of this id is being written");
}

/* A session's file.  What concerns the cache runs on the scheduler's thread; the file is written
 * and read on this one, while answers go on. */
struct transfer {
    struct daemon *d;
    struct named *named;
    struct ingle_session *session;
    ingle_status status;
    struct ingle_error error;
    bool computed; /* Sync: d->lock */
};

static void on_computed(void *arg, const struct ingle_usage *usage)
{
    struct transfer *t = arg;
    (void)usage;
    pthread_mutex_lock(&t->d->lock);
    t->computed = true;
    pthread_cond_signal(&t->d->ended);
    pthread_mutex_unlock(&t->d->lock);
}

static void on_compute_end(void *arg, int index, enum ingle_finish why,
                           const struct ingle_error *error)
{
    struct transfer *t = arg;
    (void)index;
    if (why != INGLE_FINISH_ERROR || !error)
        return;
    t->status = error->status;
    t->error = *error;
}

/* What was forgotten of its tokens is computed again, in turn with the answers. */
static ingle_status compute(struct transfer *t)
{
    struct daemon *d = t->d;
    struct ingle_request *request;
    struct ingle_request_options o = {.prompt = t->named->token, .n_prompt = (int64_t)t->named->n,
                                      .end = on_compute_end, .done = on_computed, .arg = t};
    say_way(&o, &t->named->way);
    ingle_sampling_defaults(d->model, &o.sampling);
    t->status = ingle_scheduler_submit(d->scheduler, &o, &request, NULL, &t->error);
    if (t->status == INGLE_LIMIT) /* the queue is full: fetch() does it */
        return t->status = INGLE_OK;
    if (t->status)
        return t->status;
    pthread_mutex_lock(&d->lock);
    while (!t->computed)
        pthread_cond_wait(&d->ended, &d->lock);
    pthread_mutex_unlock(&d->lock);
    return t->status;
}

static void open_session(struct ingle_engine *e, void *arg)
{
    struct transfer *t = arg;
    t->status = ingle_session_open(&t->session, e, &t->error);
    for (int k = 0; k < INGLE_WAYS && !t->status; k++)
        if (t->named->way.text[k][0])
            t->status = ingle_session_set_way(t->session, (enum ingle_way_kind)k,
                                              t->named->way.text[k], &t->error);
}

static void close_session(struct ingle_engine *e, void *arg)
{
    struct transfer *t = arg;
    (void)e;
    ingle_session_close(t->session);
}

/* The session becomes what the cache has of the tokens; what it should have and has not is computed
 * at once.  A sync never takes its last token from there: it gets one more. */
static void fetch(struct ingle_engine *e, void *arg)
{
    struct transfer *t = arg;
    struct named *n = t->named;
    struct ingle_engine_info info;
    const float *logits;
    ingle_engine_info(e, &info);
    if (!mem_grow(&n->token, &n->cap, n->n + 1, sizeof *n->token)) {
        t->error = (struct ingle_error){INGLE_NOMEM, "no memory for the session's tokens"};
        t->status = INGLE_NOMEM;
        return;
    }
    n->token[n->n] = n->token[0];
    t->status = ingle_session_sync(t->session, n->token, num_min((int64_t)n->n + 1, info.n_ctx),
                                   NULL, &t->error);
    if (!t->status)
        t->status = ingle_session_rewind(t->session, (int64_t)n->n, &t->error);
    if (!t->status) /* also what lay on a card that is lost */
        t->status = ingle_session_finish(t->session, &logits, &t->error);
}

/* What was loaded, into tokens and cache. */
static void take(struct ingle_engine *e, void *arg)
{
    struct transfer *t = arg;
    struct named *n = t->named;
    int64_t count;
    const int32_t *ids = ingle_session_tokens(t->session, &count);
    (void)e;
    if (ingle_session_skipped(t->session)) {
        t->error = (struct ingle_error){
            INGLE_UNSUP,
            "the prompt of its file was shortened; a session of the daemon has the whole text"};
        t->status = INGLE_UNSUP;
        return;
    }
    if (!mem_grow(&n->token, &n->cap, (size_t)count + 1, sizeof *n->token)) {
        t->error = (struct ingle_error){INGLE_NOMEM, "no memory for the session's tokens"};
        t->status = INGLE_NOMEM;
        return;
    }
    memcpy(n->token, ids, (size_t)count * sizeof *ids);
    n->n = (size_t)count;
    ingle_session_way(t->session, &n->way);
    t->status = ingle_session_remember(t->session, &t->error);
}

static void transfer(struct transfer *t, const char *path, bool load)
{
    struct ingle_scheduler *s = t->d->scheduler;
    if (!load && compute(t))
        return;
    ingle_scheduler_call(s, open_session, t);
    if (t->status)
        return;
    if (load)
        t->status = ingle_scheduler_load(s, t->session, path, &t->error);
    if (!t->status)
        ingle_scheduler_call(s, load ? take : fetch, t);
    if (!t->status && !load)
        t->status = ingle_session_save(t->session, path, &t->error);
    if (t->status == INGLE_LOST && !load) {
        ingle_scheduler_call(s, fetch, t);
        if (!t->status)
            t->status = ingle_session_save(t->session, path, &t->error);
    }
    ingle_scheduler_call(s, close_session, t);
}

static void save_or_load(struct daemon *d, struct command *c, const char *id, const char *name,
                         bool load)
{
    struct err err;
    struct transfer t = {.d = d};
    const char *path = text_of(c, "file");
    if (!path || !name[0]) {
        send_error(d, id, "'session' and 'file' are needed");
        return;
    }
    t.named = need_session(d, name, &err);
    if (!t.named) {
        send_error(d, id, err.msg);
        return;
    }
    if (!load && !t.named->n) {
        drop_session(d, t.named);
        send_error(d, id, "the session is empty");
        return;
    }
    transfer(&t, path, load);
    if (t.status) {
        leave_session(d, t.named);
        send_error(d, id, t.error.text);
        return;
    }
    struct str s;
    begin_event(&s, id, load ? "loaded" : "saved");
    write_member_uint(&s, "tokens", t.named->n);
    send(d, &s);
}

static void reset(struct daemon *d, const char *id, const char *name)
{
    pthread_mutex_lock(&d->lock);
    struct named *s = find_session(d, name);
    const bool busy = s && s->busy;
    pthread_mutex_unlock(&d->lock);
    if (!s || busy) {
        send_error(d, id, s ? "the session is being answered" : "there is no such session");
        return;
    }
    drop_session(d, s);
    send_done(d, id, "reset");
}

static void close_engine(struct daemon *d)
{
    ingle_scheduler_close(d->scheduler);
    reap(d, true);
    ingle_engine_close(d->engine);
    d->scheduler = NULL;
    d->engine = NULL;
}

static ingle_status open_engine(struct daemon *d, struct ingle_error *error)
{
    const int parallel = (int)ingle_config_number(d->c->config, "parallel");
    struct ingle_engine_options e = {.callbacks = cli_callbacks(d->c)};
    ingle_config_engine(d->c->config, &e);
    e.n_sessions = parallel ? parallel : PARALLEL;
    e.max_logits = num_max(16, e.n_sessions);
    const struct ingle_scheduler_options o = {.max_running = e.n_sessions};
    ingle_status st = ingle_engine_open(&d->engine, d->model, &e, error);
    if (st)
        return st;
    cli_pack_say(d->c, d->engine);
    st = ingle_scheduler_open(&d->scheduler, d->engine, &o, error);
    if (st) {
        ingle_engine_close(d->engine);
        d->engine = NULL;
    }
    return st;
}

static void park(struct daemon *d, const char *id)
{
    bool busy = false;
    pthread_mutex_lock(&d->lock);
    for (const struct job *j = d->jobs; j; j = j->next)
        busy |= !j->finished;
    pthread_mutex_unlock(&d->lock);
    if (busy) {
        send_error(d, id, "answers are being written; cancel them or wait");
        return;
    }
    if (d->engine)
        close_engine(d);
    send_done(d, id, "parked");
}

static void unpark(struct daemon *d, const char *id)
{
    struct ingle_error error;
    if (!d->engine && open_engine(d, &error))
        send_error(d, id, error.text);
    else
        send_done(d, id, "unparked");
}

static void status(struct daemon *d, const char *id)
{
    struct ingle_scheduler_status t = {0};
    struct ingle_engine_info e = {.draft = ""};
    struct str s;
    if (d->scheduler)
        (void)ingle_scheduler_status(d->scheduler, &t, NULL, 0);
    if (d->engine)
        ingle_engine_info(d->engine, &e);
    begin_event(&s, id, "status");
    write_member_bool(&s, "parked", !d->engine);
    write_member_int(&s, "running", t.n_running);
    write_member_int(&s, "waiting", t.n_waiting);
    write_member_int(&s, "prompt_tokens", t.prompt_tokens);
    write_member_int(&s, "cached_tokens", t.cached_tokens);
    write_member_int(&s, "generated_tokens", t.generated_tokens);
    write_member_uint(&s, "kv_used_bytes", t.kv_used_bytes);
    write_member_uint(&s, "kv_budget_bytes", t.kv_budget_bytes);
    write_member(&s, "draft",
                 *e.draft       ? e.draft
                 : e.draft_text ? "ngram"
                                : "off");
    write_member_int(&s, "drafted", t.drafted_tokens);
    write_member_int(&s, "accepted", t.accepted_tokens);
    write_member_fixed(&s, "draft_saved_s", 6, t.draft_saved_seconds);
    write_key(&s, "sessions");
    write_open(&s, '[');
    pthread_mutex_lock(&d->lock);
    for (const struct named *n = d->sessions; n; n = n->next) {
        write_open(&s, '{');
        write_member(&s, "session", n->name);
        write_member_uint(&s, "tokens", n->n);
        write_member_bool(&s, "busy", n->busy);
        write_close(&s, '}');
    }
    pthread_mutex_unlock(&d->lock);
    write_close(&s, ']');
    send(d, &s);
}

/* ---- the loop ---- */

static void obey(struct daemon *d, struct command *c)
{
    char id[MOST_NAME + 1], session[MOST_NAME + 1];
    name_of(c, "id", id);
    name_of(c, "session", session);
    const char *what = text_of(c, "do");
    what = what ? what : "";
    if (!c->failed)
        check_members(c, what);
    if (c->failed)
        send_error(d, id, c->err.msg);
    else if (strcmp(what, "cancel") == 0)
        cancel(d, id);
    else if (strcmp(what, "status") == 0)
        status(d, id);
    else if (strcmp(what, "reset") == 0)
        reset(d, id, session);
    else if (strcmp(what, "park") == 0)
        park(d, id);
    else if (strcmp(what, "unpark") == 0)
        unpark(d, id);
    else if (strcmp(what, "quit") == 0)
        d->quit = true;
    else if (!d->engine)
        send_error(d, id, "the engine is parked; unpark it first");
    else if (strcmp(what, "generate") == 0)
        generate(d, c, id, session);
    else if (strcmp(what, "save") == 0 || strcmp(what, "load") == 0)
        save_or_load(d, c, id, session, what[0] == 'l');
    else
        send_error(
            d, id,
            "'do' is none of generate, cancel, reset, save, load, park, unpark, status, quit");
}

static int on_line(struct cli *cli, void *arg, char *line, size_t n)
{
    struct daemon *d = arg;
    struct command c = {0};
    const struct json_limits limits = {.n_bytes = MOST_LINE};
    (void)cli;
    reap(d, false);
    if (strspn(line, " \t\r") == n)
        return 0;
    if (json_parse(line, n, &limits, &c.o, &c.err)) {
        send_error(d, NULL, c.err.msg);
        return 0;
    }
    if (json_object_is_type(c.o, json_type_object))
        obey(d, &c);
    else
        send_error(d, NULL, "a command is a JSON object");
    json_object_put(c.o);
    return d->quit;
}

static void greet(struct daemon *d)
{
    struct ingle_engine_info info;
    struct ingle_model_info model;
    struct str s;
    ingle_engine_info(d->engine, &info);
    ingle_model_info(d->model, &model);
    begin_event(&s, NULL, "ready");
    write_member(&s, "version", ingle_version());
    write_member(&s, "model", model.name);
    write_member_int(&s, "n_ctx", info.n_ctx);
    send(d, &s);
}

static void free_sessions(struct daemon *d)
{
    while (d->sessions)
        drop_session(d, d->sessions);
}

int cli_daemon(struct cli *c)
{
    struct daemon d = {.c = c};
    struct ingle_error error;
    if (c->n_arg)
        return cli_usage(c, "daemon takes no argument, not '%s'", c->arg[0]);
    if (ingle_config_is_set(c->config, "stream-fd"))
        return cli_stream(c, (int)ingle_config_number(c->config, "stream-fd"));
    if (cli_open_model(c, &d.model, &error))
        return cli_fail(c, &error);
    if (open_engine(&d, &error)) {
        ingle_model_close(d.model);
        return cli_fail(c, &error);
    }
    pthread_mutex_init(&d.lock, NULL);
    pthread_cond_init(&d.ended, NULL);
    cli_screen_clear(&c->screen);
    greet(&d);
    const int rc = cli_lines(c, CLI_JSON, MOST_LINE, on_line, &d);
    reap(&d, !d.quit); /* at the end of the input the answers are finished, at "quit" cut short */
    close_engine(&d);
    free_sessions(&d);
    ingle_model_close(d.model);
    pthread_cond_destroy(&d.ended);
    pthread_mutex_destroy(&d.lock);
    return d.quit ? CLI_OK : rc;
}
