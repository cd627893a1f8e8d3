/* SPDX-License-Identifier: Apache-2.0 */
#include "server/fields.h"
#include "server/request.h"

#include "base/clock.h"
#include "base/mem.h"
#include "server/tape.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int status_of(enum fault_kind kind)
{
    switch (kind) {
    case FAULT_NONE:
        return 200;
    case FAULT_REQUEST:
    case FAULT_CONTEXT:
        return 400;
    case FAULT_MODEL:
        return 404;
    case FAULT_BUSY:
        return 429;
    case FAULT_STOPPING:
        return 503;
    case FAULT_UNSUP:
        return 501;
    case FAULT_DEADLINE:
        return 504;
    case FAULT_ENGINE:
        break;
    }
    return 500;
}

void request_fault(struct fault *f, enum fault_kind kind, const char *param, const char *fmt, ...)
{
    if (f->kind)
        return;
    va_list ap;
    f->kind = kind;
    f->status = status_of(kind);
    f->retry_seconds = -1;
    snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(f->message, sizeof f->message, fmt, ap);
    va_end(ap);
}

bool request_has_ended(void *arg)
{
    struct fault *f = arg;
    if (!f->kind && f->poll)
        f->poll(f->arg, f);
    if (!f->kind && f->until && clock_now() > f->until)
        request_fault(f, FAULT_DEADLINE, NULL,
                      "the time for this request is up (deadline_seconds)");
    return f->kind != FAULT_NONE;
}

bool request_go_on(struct fault *f)
{
    enum { STEPS = 256 };
    return ++f->n_steps % STEPS ? f->kind == FAULT_NONE : !request_has_ended(f);
}

void request_fault_from(struct fault *f, ingle_status s, const char *param, const char *text)
{
    const bool theirs = s == INGLE_ARG || s == INGLE_FORMAT || s == INGLE_LIMIT ||
                        s == INGLE_UNSUP || s == INGLE_NOTFOUND;
    request_fault(f, theirs ? FAULT_REQUEST : FAULT_ENGINE, param, "%s", text);
}

/* ---- reading fields ---- */

/* An object begins with two bytes of ASCII: what has a zero among them, or their byte-order mark,
 * is wider. */
static bool is_wide(const char *text, size_t n)
{
    return n >= 2 && (!text[0] || !text[1] || memcmp(text, "\xFF\xFE", 2) == 0 ||
                      memcmp(text, "\xFE\xFF", 2) == 0);
}

struct json_object *request_body(const char *text, size_t n, struct fault *f)
{
    const struct json_limits limits = {.depth = REQUEST_MAX_DEPTH,
                                       .n_values = REQUEST_MAX_VALUES,
                                       .n_keys = REQUEST_MAX_KEYS,
                                       .stop = request_has_ended,
                                       .arg = f};
    struct json_object *o = NULL;
    struct err err;
    /* a byte order mark, as some editors write it */
    if (n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) {
        text += 3;
        n -= 3;
    }
    if (is_wide(text, n)) {
        request_fault(f, FAULT_REQUEST, NULL,
                      "the body is UTF-16 or UTF-32: JSON is sent as UTF-8");
        return NULL;
    }
    const ingle_status st = json_parse(text, n, &limits, &o, &err);
    if (st) {
        request_fault_from(f, st, NULL, err.msg);
        return NULL;
    }
    if (json_object_is_type(o, json_type_object))
        return o;
    json_object_put(o);
    request_fault(f, FAULT_REQUEST, NULL, "the body is JSON, but no object");
    return NULL;
}

struct json_object *request_get(struct json_object *o, const char *name)
{
    struct json_object *v = NULL;
    return json_object_object_get_ex(o, name, &v) ? v : NULL;
}

bool request_is_text(struct json_object *v) { return json_object_is_type(v, json_type_string); }

bool request_text_is(struct json_object *v, const char *word)
{
    return request_is_text(v) && strcmp(json_object_get_string(v), word) == 0;
}

static const char *type_of(struct json_object *v)
{
    switch (json_object_get_type(v)) {
    case json_type_boolean:
        return "a boolean";
    case json_type_double:
    case json_type_int:
        return "a number";
    case json_type_object:
        return "an object";
    case json_type_array:
        return "an array";
    case json_type_string:
        return "a string";
    case json_type_null:
        break;
    }
    return "null";
}

static void wrong_type(struct fault *f, const char *name, struct json_object *v, const char *want)
{
    if (f->expects)
        request_fault(f, FAULT_REQUEST, name, "'%s' is %.40s, expected %s", name,
                      json_object_to_json_string(v), want);
    else
        request_fault(f, FAULT_REQUEST, name, "'%s' is %s and should be %s", name, type_of(v),
                      want);
}

void request_get_bool(struct json_object *o, const char *name, bool *out, struct fault *f)
{
    struct json_object *v = request_get(o, name);
    if (!v || f->kind)
        return;
    if (!json_object_is_type(v, json_type_boolean))
        wrong_type(f, name, v, f->expects ? "true or false" : "a boolean");
    else
        *out = json_object_get_boolean(v);
}

bool request_is_number(struct json_object *v)
{
    return json_object_is_type(v, json_type_int) || json_object_is_type(v, json_type_double);
}

/* In the words of the daemon. */
static bool is_expected(struct json_object *v, const char *name, double min, double max,
                        struct fault *f)
{
    const double d = json_object_get_double(v);
    if (!request_is_number(v))
        wrong_type(f, name, v, "a number");
    else if (!(d >= min && d <= max))
        request_fault(f, FAULT_REQUEST, name, "'%s' is %g, expected %g to %g", name, d, min, max);
    return !f->kind;
}

/* Clients in JavaScript write whole numbers as they like: 100.0, 1e2. */
void request_get_int(struct json_object *o, const char *name, int64_t min, int64_t max,
                     int64_t *out, struct fault *f)
{
    struct json_object *v = request_get(o, name);
    if (!v || f->kind || (f->expects && !is_expected(v, name, (double)min, (double)max, f)))
        return;
    const double d = request_is_number(v) ? json_object_get_double(v) : 0.5;
    if (!(fabs(d) <= 9e18) || floor(d) < d) {
        if (f->expects)
            request_fault(f, FAULT_REQUEST, name, "'%s' is %g, expected a whole number", name, d);
        else if (request_is_number(v))
            request_fault(f, FAULT_REQUEST, name, "'%s' is %s and should be a whole number", name,
                          json_object_get_string(v));
        else
            wrong_type(f, name, v, "a whole number");
        return;
    }
    const int64_t i = json_object_is_type(v, json_type_int) ? json_object_get_int64(v) : (int64_t)d;
    if (i < min || i > max)
        request_fault(f, FAULT_REQUEST, name, "'%s' is %lld, outside %lld to %lld", name,
                      (long long)i, (long long)min, (long long)max);
    else
        *out = i;
}

void request_get_number(struct json_object *o, const char *name, double min, double max, float *out,
                        struct fault *f)
{
    struct json_object *v = request_get(o, name);
    if (!v || f->kind || (f->expects && !is_expected(v, name, min, max, f)))
        return;
    const double d = request_is_number(v) ? json_object_get_double(v) : 0;
    if (!request_is_number(v))
        wrong_type(f, name, v, "a number");
    else if (!(d >= min && d <= max))
        request_fault(f, FAULT_REQUEST, name, "'%s' is %g, outside %g to %g", name, d, min, max);
    else
        *out = (float)d;
}

static void check_text(const char *name, struct json_object *v, size_t max_bytes, struct fault *f)
{
    if (!json_object_is_type(v, json_type_string))
        wrong_type(f, name, v, "a string");
    else if ((size_t)json_object_get_string_len(v) > max_bytes)
        request_fault(f, FAULT_REQUEST, name, "'%s' has %d bytes, the limit is %zu", name,
                      json_object_get_string_len(v), max_bytes);
}

void request_get_text(struct json_object *o, const char *name, size_t max_bytes, struct str *out,
                      struct fault *f)
{
    struct json_object *v = request_get(o, name);
    if (!v || f->kind)
        return;
    check_text(name, v, max_bytes, f);
    if (f->kind)
        return;
    str_clear(out);
    str_add(out, json_object_get_string(v), (size_t)json_object_get_string_len(v));
}

struct json_object *request_get_array(struct json_object *o, const char *name, size_t max_items,
                                      struct fault *f)
{
    struct json_object *v = request_get(o, name);
    if (!v || f->kind)
        return NULL;
    if (!json_object_is_type(v, json_type_array)) {
        wrong_type(f, name, v, "an array");
        return NULL;
    }
    if (json_object_array_length(v) > max_items) {
        request_fault(f, FAULT_REQUEST, name, "'%s' has %zu items, the limit is %zu", name,
                      json_object_array_length(v), max_items);
        return NULL;
    }
    return v;
}

struct json_object *request_get_object(struct json_object *o, const char *name, struct fault *f)
{
    struct json_object *v = request_get(o, name);
    if (!v || f->kind || json_object_is_type(v, json_type_object))
        return f->kind ? NULL : v;
    wrong_type(f, name, v, "an object");
    return NULL;
}

void request_add_value(struct str *out, struct json_object *o)
{
    size_t n;
    const char *text = json_object_to_json_string_length(
        o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, &n);
    if (text)
        str_add(out, text, n);
    else
        out->failed = true;
}

/* ---- the request ---- */

void request_init(struct chat_request *r, const struct ingle_sampling *defaults)
{
    *r = (struct chat_request){
        .thinking_budget = -1,
        .o = {.sampling = *defaults, .max_tokens = -1, .n = 1},
        .parallel_calls = true,
        .add_special = true,
    };
    r->o.sampling.bias = NULL;
    r->o.sampling.n_bias = 0;
    str_init(&r->model);
    str_init(&r->messages);
    str_init(&r->tools);
    str_init(&r->late_tools);
    str_init(&r->effort);
    str_init(&r->grammar);
    str_init(&r->tool_name);
    str_init(&r->allowed);
    str_init(&r->user);
    str_init(&r->cache_key);
    for (size_t i = 0; i < defaults->n_bias; i++) {
        struct fault none = {0};
        request_add_bias(r, defaults->bias[i].token, defaults->bias[i].bias, &none);
    }
}

static void take_note(void *arg, ingle_report_level level, const char *kind, const char *subject,
                      const char *text)
{
    struct chat_request *r = arg;
    char line[400];
    if (r->log && r->log->report)
        r->log->report(r->log->arg, level, kind, subject, text);
    snprintf(line, sizeof line, "%s '%.100s': %.250s", kind, subject, text);
    if (r->n_warnings < REQUEST_MAX_WARNINGS && (r->warning[r->n_warnings] = mem_strdup(line)))
        r->n_warnings++;
}

const struct report_sink *request_notes(struct chat_request *r, const struct report_sink *log)
{
    r->log = log;
    r->notes = (struct report_sink){.report = take_note, .arg = r};
    return &r->notes;
}

void request_release(struct chat_request *r)
{
    while (r->n_warnings)
        mem_free(r->warning[--r->n_warnings]);
    tape_unref(r->tape);
    r->tape = NULL;
    str_release(&r->model);
    str_release(&r->messages);
    str_release(&r->tools);
    str_release(&r->late_tools);
    str_release(&r->effort);
    str_release(&r->grammar);
    str_release(&r->tool_name);
    str_release(&r->allowed);
    str_release(&r->user);
    str_release(&r->cache_key);
    for (size_t i = 0; i < r->n_media; i++) {
        str_release(&r->medium[i].bytes);
        mem_free(r->medium[i].url);
    }
    mem_free(r->medium);
    r->medium = NULL;
    r->n_media = r->cap_media = 0;
    for (size_t i = 0; i < r->n_prompts; i++) {
        str_release(&r->prompt[i].text);
        mem_free(r->prompt[i].ids);
    }
    for (size_t i = 0; i < r->n_stop; i++)
        str_release(&r->stop[i]);
    mem_free(r->prompt);
    mem_free(r->stop);
    mem_free(r->bias);
    struct request_ids *const ids[] = {&r->stop_ids, &r->banned, &r->only};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        mem_free(ids[i]->id);
        *ids[i] = (struct request_ids){0};
    }
    r->prompt = NULL;
    r->stop = NULL;
    r->bias = NULL;
    r->n_prompts = r->n_stop = r->n_bias = 0;
}

static void nomem(struct fault *f)
{
    request_fault(f, FAULT_ENGINE, NULL, "no memory for a request");
}

void request_add_stop(struct chat_request *r, const char *text, size_t n, const char *param,
                      struct fault *f)
{
    if (f->kind || !n)
        return;
    if (n > REQUEST_MAX_STOP_BYTES || memchr(text, 0, n)) {
        request_fault(f, FAULT_REQUEST, param,
                      "a string of '%s' has %zu bytes, more than %d, or a NUL", param, n,
                      (int)REQUEST_MAX_STOP_BYTES);
        return;
    }
    if (r->n_stop >= REQUEST_MAX_STOPS) {
        request_fault(f, FAULT_REQUEST, param, "'%s' has more than %d strings", param,
                      (int)REQUEST_MAX_STOPS);
        return;
    }
    if (!mem_grow(&r->stop, &r->cap_stop, r->n_stop + 1, sizeof *r->stop)) {
        nomem(f);
        return;
    }
    struct str *s = &r->stop[r->n_stop++];
    str_init(s);
    str_add(s, text, n);
}

void request_add_bias(struct chat_request *r, int32_t token, float bias, struct fault *f)
{
    if (f->kind)
        return;
    if (r->n_bias >= REQUEST_MAX_BIAS)
        request_fault(f, FAULT_REQUEST, "logit_bias", "'logit_bias' has more than %d entries",
                      (int)REQUEST_MAX_BIAS);
    else if (!mem_grow(&r->bias, &r->cap_bias, r->n_bias + 1, sizeof *r->bias))
        nomem(f);
    else
        r->bias[r->n_bias++] = (struct ingle_bias){token, bias};
}

struct request_prompt *request_add_prompt(struct chat_request *r, struct fault *f)
{
    if (f->kind)
        return NULL;
    if (r->n_prompts >= REQUEST_MAX_PROMPTS) {
        request_fault(f, FAULT_REQUEST, "prompt", "'prompt' has more than %d prompts",
                      (int)REQUEST_MAX_PROMPTS);
        return NULL;
    }
    if (!mem_grow(&r->prompt, &r->cap_prompts, r->n_prompts + 1, sizeof *r->prompt)) {
        nomem(f);
        return NULL;
    }
    struct request_prompt *p = &r->prompt[r->n_prompts++];
    *p = (struct request_prompt){0};
    str_init(&p->text);
    return p;
}

const char *request_prompt_param(const struct chat_request *r)
{
    if (r->prompt_param)
        return r->prompt_param;
    return r->chat ? "messages" : "prompt";
}

bool request_has_tools(const struct chat_request *r)
{
    return (r->tools.n || r->late_tools.n) && r->tool_choice != TOOLS_NONE;
}

void request_check(const struct chat_request *r, struct fault *f)
{
    bool ok = str_ok(&r->model) && str_ok(&r->messages) && str_ok(&r->tools) &&
              str_ok(&r->late_tools) && str_ok(&r->effort) && str_ok(&r->grammar) &&
              str_ok(&r->tool_name) && str_ok(&r->allowed) && str_ok(&r->user) &&
              str_ok(&r->cache_key);
    for (size_t i = 0; i < r->n_prompts; i++)
        ok = ok && str_ok(&r->prompt[i].text);
    for (size_t i = 0; i < r->n_stop; i++)
        ok = ok && str_ok(&r->stop[i]);
    if (!ok)
        nomem(f);
}

void request_effort(struct chat_request *r, const char *word, const char *param, struct fault *f)
{
    static const struct {
        const char *word;
        enum request_thinking thinking;
        const char *effort;
    } known[] = {
        {"none", THINKING_OFF, ""},        {"off", THINKING_OFF, ""},
        {"disabled", THINKING_OFF, ""},    {"false", THINKING_OFF, ""},
        {"minimal", THINKING_ON, "low"},   {"low", THINKING_ON, "low"},
        {"medium", THINKING_ON, "medium"}, {"high", THINKING_ON, "high"},
        {"xhigh", THINKING_ON, "max"},     {"max", THINKING_ON, "max"},
        {"on", THINKING_ON, ""},           {"enabled", THINKING_ON, ""},
        {"true", THINKING_ON, ""},         {"auto", THINKING_DEFAULT, ""},
        {"default", THINKING_DEFAULT, ""}, {"", THINKING_DEFAULT, ""},
    };
    if (f->kind)
        return;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(word, known[i].word) != 0)
            continue;
        if (known[i].thinking != THINKING_DEFAULT) {
            str_clear(&r->effort);
            r->thinking = known[i].thinking;
            str_adds(&r->effort, known[i].effort);
        }
        return;
    }
    request_fault(f, FAULT_REQUEST, param,
                  "'%s' is '%.40s', not none, minimal, low, medium, high, xhigh or max", param,
                  word);
}

void request_get_unsupported(struct json_object *o, const char *name, struct chat_request *r,
                             struct fault *f)
{
    struct json_object *v = request_get(o, name);
    const char *word = request_is_text(v) ? json_object_get_string(v) : "";
    if (!v || f->kind)
        return;
    if (strcmp(word, "drop") == 0)
        r->unsupported = UNSUPPORTED_DROP;
    else if (strcmp(word, "refuse") == 0)
        r->unsupported = UNSUPPORTED_REFUSE;
    else
        request_fault(f, FAULT_REQUEST, name, "'%s' is neither \"refuse\" nor \"drop\"", name);
}

void request_get_cache_key(struct json_object *o, const char *name, struct chat_request *r)
{
    struct json_object *v = request_get(o, name);
    if (request_is_text(v) && json_object_get_string_len(v) <= REQUEST_MAX_AFFINITY)
        str_add(&r->cache_key, json_object_get_string(v), (size_t)json_object_get_string_len(v));
}

void request_get_way(struct json_object *o, const char *name, enum ingle_way_kind kind,
                     struct ingle_way *out, struct fault *f)
{
    struct json_object *v = request_get(o, name);
    struct ingle_error e;
    if (!v || f->kind)
        return;
    if (!json_object_is_type(v, json_type_boolean) && !request_is_text(v)) {
        if (f->expects)
            wrong_type(f, name, v, "a string, true or false");
        request_fault(f, FAULT_REQUEST, name, "'%s' is neither a boolean nor a text", name);
        return;
    }
    const char *how = request_is_text(v)           ? json_object_get_string(v)
                      : json_object_get_boolean(v) ? "on"
                                                   : "off";
    const ingle_status st = ingle_way_check(kind, how, &e);
    if (request_is_text(v) && memchr(how, 0, (size_t)json_object_get_string_len(v)))
        request_fault(f, FAULT_REQUEST, name,
                      f->expects ? "'%s' has a NUL byte" : "'%s' has a zero character", name);
    else if (st)
        request_fault_from(f, st, name, e.text);
    snprintf(out->text[kind], sizeof out->text[kind], "%s", how);
}

void request_get_image_tokens(struct json_object *o, const char *name, struct chat_request *r,
                              struct fault *f)
{
    static const int64_t budget[] = {70, 140, 280, 560, 1120};
    struct json_object *v = request_get(o, name);
    if (!v)
        return;
    if (request_text_is(v, "auto")) {
        r->image_tokens = INGLE_MEDIA_AUTO;
        return;
    }
    for (size_t i = 0; i < sizeof budget / sizeof *budget; i++)
        if (json_object_is_type(v, json_type_int) && json_object_get_int64(v) == budget[i]) {
            r->image_tokens = (int32_t)budget[i];
            return;
        }
    request_fault(f, FAULT_REQUEST, name, "'%s' is %.40s, not 70, 140, 280, 560, 1120 or \"auto\"",
                  name, json_object_get_string(v));
}

void request_get_keep(struct json_object *o, const char *name, double min, struct chat_request *r,
                      struct fault *f)
{
    struct json_object *v = request_get(o, name);
    if (!v || f->kind)
        return;
    const bool is_bool = json_object_is_type(v, json_type_boolean);
    if (!is_bool && f->expects && !is_expected(v, name, min, 1, f))
        return;
    if (!is_bool && !request_is_number(v)) {
        request_fault(f, FAULT_REQUEST, name, "'%s' is neither a number nor a boolean", name);
        return;
    }
    const double keep = is_bool ? !json_object_get_boolean(v) : json_object_get_double(v);
    if (!is_bool && !(keep > 0 && keep <= 1)) {
        request_fault(f, FAULT_REQUEST, name, "'%s' is %g, expected above 0, up to 1", name, keep);
        return;
    }
    r->prompt_keep = keep;
    r->keep_requested = true;
}

void request_get_seed(struct json_object *o, const char *name, struct chat_request *r,
                      struct fault *f)
{
    struct json_object *v = request_get(o, name);
    if (!v || f->kind)
        return;
    if (!request_is_number(v)) {
        request_fault(f, FAULT_REQUEST, name, "'%s' is no number", name);
        return;
    }
    const double d = json_object_get_double(v);
    if (json_object_is_type(v, json_type_int))
        r->o.sampling.seed = d < 0 ? (uint64_t)json_object_get_int64(v) : json_object_get_uint64(v);
    else
        memcpy(&r->o.sampling.seed, &d, sizeof d);
    r->seeded = !(d >= -1 && d <= -1);
}
