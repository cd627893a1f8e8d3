/* SPDX-License-Identifier: Apache-2.0 */
/* eval_official - a vendor's answers, token by token with log-probabilities, against what the model
 * says. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/talk.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/write.h"
#include "tool/tool.h"
#include <math.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 20, DIFFERS = 3, SHOWN = 24 }; /* DIFFERS: the exit code */

struct official {
    struct cli *c;
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_session *s;
    struct cli_talk media; /* of messages */
    int64_t n_vocab, n_ctx, chunk;
    bool json;
    uint64_t n_prompts, n_tokens, n_other;
    double sum, most;
};

struct answer {
    int32_t *ids;     /* prompt, then answer */
    double *logprob;  /* [n_answer] */
    int64_t n_prompt, n_answer;
    struct ingle_prompt prompt; /* media among ids */
    char name[64];
    /* results */
    /* places where the best token is another one; the first of them, -1: none */
    int64_t n_other, first;
    int32_t best;           /* there */
    double sum, most;       /* of differences of log-probabilities */
};

/* The bytes of a token of the vendor's list: 'bytes' where it has them, else its text. */
static ingle_status add_piece(struct json_object *one, struct str *to, struct err *err)
{
    struct json_object *bytes = json_member(one, "bytes"), *text = json_member(one, "token");
    if (json_object_is_type(bytes, json_type_array)) {
        for (size_t i = 0; i < json_object_array_length(bytes); i++)
            str_addc(to, (char)json_object_get_int(json_object_array_get_idx(bytes, i)));
        return INGLE_OK;
    }
    if (!json_object_is_type(text, json_type_string))
        return err_set(err, INGLE_FORMAT, "a token has neither 'bytes' nor a text 'token'");
    str_add(to, json_object_get_string(text), (size_t)json_object_get_string_len(text));
    return INGLE_OK;
}

/* The one token that has these bytes. */
static ingle_status id_of(const struct official *o, struct json_object *one, int64_t i, int32_t *id,
                          struct err *err)
{
    struct json_object *given = json_member(one, "id");
    struct ingle_error error;
    int32_t *ids = NULL;
    size_t n = 0;
    struct str piece;
    if (json_object_is_type(given, json_type_int)) {
        *id = json_object_get_int(given);
        return *id >= 0 && *id < o->n_vocab
                   ? INGLE_OK
                   : err_set(err, INGLE_FORMAT, "token %lld has the id %d, outside the vocabulary",
                             (long long)i, *id);
    }
    str_init(&piece);
    ingle_status st = add_piece(one, &piece, err);
    if (!st && ingle_tokenize(o->m, piece.at, piece.n, INGLE_PARSE_SPECIAL, &ids, &n, &error))
        st = err_set(err, INGLE_FORMAT, "token %lld: %.200s", (long long)i, error.text);
    if (!st && n != 1)
        st = err_set(err, INGLE_FORMAT,
                     "token %lld '%.40s' is %zu tokens of this vocabulary: give its 'id'",
                     (long long)i, piece.at, n);
    if (!st)
        *id = ids[0];
    ingle_free(ids);
    str_release(&piece);
    return st;
}

static ingle_status prompt_of(struct official *o, struct json_object *line,
                              struct ingle_prompt *p, struct err *err)
{
    struct json_object *messages = json_member(line, "messages"),
                       *text = json_member(line, "prompt"),
                       *thinking = json_member(line, "thinking");
    struct ingle_error error;
    ingle_status st;
    *p = (struct ingle_prompt){0};
    if (json_object_is_type(messages, json_type_array)) {
        struct ingle_medium *medium[CLI_MOST_MEDIA];
        const char *json = json_object_to_json_string_ext(messages, JSON_C_TO_STRING_PLAIN);
        struct ingle_chat chat = {.messages = json,
                                  .n_messages = strlen(json),
                                  .media = medium,
                                  .thinking = json_object_get_boolean(thinking)};
        st = cli_media_of(&o->media, messages, medium, &chat.n_media, &error);
        if (!st)
            st = ingle_chat_render(o->m, &chat, p, &error);
    } else if (json_object_is_type(text, json_type_string)) {
        st = ingle_tokenize(o->m, json_object_get_string(text),
                            (size_t)json_object_get_string_len(text),
                            INGLE_ADD_SPECIAL | INGLE_PARSE_SPECIAL, &p->ids, &p->n_ids, &error);
    } else {
        return err_set(err, INGLE_FORMAT, "there is neither 'messages' nor 'prompt'");
    }
    return st ? err_set(err, st, "%.300s", error.text) : INGLE_OK;
}

/* The list as OpenAI's API has it under choices[0].logprobs, or under 'tokens'. */
static struct json_object *tokens_of(struct json_object *line)
{
    struct json_object *list = json_member(line, "tokens");
    list = list ? list : json_member(json_member(line, "logprobs"), "content");
    return json_object_is_type(list, json_type_array) ? list : NULL;
}

static ingle_status read_answer(struct official *o, struct json_object *line,
                                struct answer *a, struct err *err)
{
    struct json_object *list = tokens_of(line), *name = json_member(line, "name");
    const size_t n = list ? json_object_array_length(list) : 0;
    if (!n || n > MAX_TOKENS)
        return err_set(err, INGLE_FORMAT,
                       "there is no list 'tokens' (or 'logprobs.content') of 1 to %d tokens",
                       MAX_TOKENS);
    ingle_status st = prompt_of(o, line, &a->prompt, err);
    if (st)
        return st;
    const struct ingle_prompt *p = &a->prompt;
    a->n_prompt = (int64_t)p->n_ids;
    a->n_answer = (int64_t)n;
    a->ids = mem_calloc(p->n_ids + n, sizeof *a->ids);
    a->logprob = mem_calloc(n, sizeof *a->logprob);
    if (!a->ids || !a->logprob)
        st = err_set(err, INGLE_NOMEM, "no memory for %zu tokens", n);
    else if (!p->n_ids || a->n_prompt + a->n_answer > o->n_ctx)
        st = err_set(err, INGLE_LIMIT,
                     "%lld tokens of prompt and %lld of answer, the context has %lld",
                     (long long)a->n_prompt, (long long)a->n_answer, (long long)o->n_ctx);
    if (!st)
        memcpy(a->ids, p->ids, p->n_ids * sizeof *a->ids);
    for (size_t i = 0; i < n && !st; i++) {
        struct json_object *one = json_object_array_get_idx(list, i),
                           *logprob = json_member(one, "logprob");
        a->logprob[i] = logprob ? json_object_get_double(logprob) : (double)NAN;
        st = id_of(o, one, (int64_t)i, &a->ids[p->n_ids + i], err);
    }
    snprintf(a->name, sizeof a->name, "%.60s",
             json_object_is_type(name, json_type_string) ? json_object_get_string(name) : "");
    return st;
}

/* What the model says before token i of the answer. */
static void take_row(const struct official *o, struct answer *a, int64_t i, const float *row)
{
    int64_t best = 0;
    for (int64_t k = 1; k < o->n_vocab; k++)
        if (row[k] > row[best])
            best = k;
    const int32_t is = a->ids[a->n_prompt + i];
    if (best != is && !(row[best] <= row[is])) {
        a->first = a->n_other++ ? a->first : i;
        a->best = a->first == i ? (int32_t)best : a->best;
    }
    const double d = fabs(-tool_surprise(row, o->n_vocab, is) - a->logprob[i]);
    if (isfinite(d)) {
        a->sum += d;
        a->most = d > a->most ? d : a->most;
    }
}

static ingle_status score(const struct official *o, struct answer *a, struct ingle_error *error)
{
    a->first = -1;
    /* What is kept of the prompt leaves its last token to be computed; the answer's last one is
     * predicted only. */
    ingle_status st = ingle_session_sync_media(o->s, a->ids, a->n_prompt, a->prompt.span,
                                               a->prompt.n_spans, NULL, error);
    if (!st && a->n_answer > 1)
        st = ingle_session_append(o->s, a->ids + a->n_prompt, a->n_answer - 1, error);
    while (!st && ingle_session_pending(o->s) > 0) {
        struct ingle_work w = {.session = o->s, .max_tokens = o->chunk, .want = INGLE_WANT_ALL};
        const int64_t at = ingle_session_length(o->s);
        st = ingle_step(o->e, &w, 1, error);
        /* of a picture's rows there is only the last one */
        const int64_t first = at + w.n_done - w.n_logits;
        for (int64_t i = 0; !st && i < w.n_logits; i++)
            if (first + i >= a->n_prompt - 1)
                take_row(o, a, first + i - (a->n_prompt - 1), w.logits + i * o->n_vocab);
    }
    return st;
}

static void print_token(const struct official *o, int32_t id, char out[SHOWN + 1])
{
    char *text = NULL;
    size_t n = 0;
    struct ingle_error error;
    out[0] = 0;
    if (!ingle_detokenize(o->m, &id, 1, true, &text, &n, &error))
        snprintf(out, SHOWN + 1, "%.*s", (int)(n < SHOWN ? n : SHOWN), text);
    ingle_free(text);
}

static void say(const struct official *o, const struct answer *a)
{
    char want[SHOWN + 1], got[SHOWN + 1];
    if (o->json) {
        struct str out;
        cli_json(&out);
        write_open(&out, '{');
        write_member(&out, "name", a->name);
        write_member_int(&out, "tokens", a->n_answer);
        write_member_int(&out, "other_best", a->n_other);
        write_member_int(&out, "first", a->first);
        write_member_significant(&out, "mean_difference", 6, a->sum / (double)a->n_answer);
        write_member_significant(&out, "largest_difference", 6, a->most);
        write_close(&out, '}');
        cli_json_end(&out, "\n");
        return;
    }
    printf("%-24s %6lld tokens, log-probabilities differ by %.4f in the mean, %.4f at most",
           CLI_SHOWN(a->name), (long long)a->n_answer, a->sum / (double)a->n_answer, a->most);
    if (a->n_other) {
        print_token(o, a->ids[a->n_prompt + a->first], want);
        print_token(o, a->best, got);
        printf("; %lld best tokens are others, the first is token %lld: '%s' where the vendor has "
               "'%s'",
               (long long)a->n_other, (long long)a->first, CLI_SHOWN(got), CLI_SHOWN(want));
    }
    putchar('\n');
}

static int one_line(struct cli *c, void *arg, char *line, size_t n)
{
    struct official *o = arg;
    struct json_object *json = NULL;
    struct answer a = {0};
    struct err err;
    struct ingle_error error;
    if (!n)
        return CLI_OK;
    int rc = CLI_OK;
    if (json_parse(line, n, NULL, &json, &err) || read_answer(o, json, &a, &err)) {
        err_prefix(&err, "%s: prompt %llu", c->arg[0], (unsigned long long)o->n_prompts + 1);
        rc = cli_fail_err(c, &err);
    } else if (score(o, &a, &error)) {
        rc = cli_fail(c, &error);
    } else {
        say(o, &a);
        o->n_prompts++;
        o->n_tokens += (uint64_t)a.n_answer;
        o->n_other += (uint64_t)a.n_other;
        o->sum += a.sum;
        o->most = a.most > o->most ? a.most : o->most;
    }
    json_object_put(json);
    ingle_prompt_release(&a.prompt);
    mem_free(a.ids);
    mem_free(a.logprob);
    return rc;
}

int cli_eval_official(struct cli *c, struct ingle_model *m, struct ingle_engine *e,
                      struct ingle_session *s, const char *path)
{
    struct ingle_engine_info info;
    ingle_engine_info(e, &info);
    struct official o = {.c = c,
                         .m = m,
                         .e = e,
                         .s = s,
                         .media = {.engine = e},
                         .n_vocab = info.n_vocab,
                         .n_ctx = info.n_ctx,
                         .chunk = CLI_FAST_STEP,
                         .json = ingle_config_flag(c->config, "json")};
    char *file[1] = {mem_strdup(path)}, **arg = c->arg;
    const int n_arg = c->n_arg;
    if (!file[0])
        return CLI_FAILURE;
    c->arg = file; /* cli_lines() reads the first argument */
    c->n_arg = 1;
    int rc = cli_lines(c, CLI_JSON, 0, one_line, &o);
    if (!rc && !o.n_prompts) { /* nothing was compared: no trust comes of it */
        struct err err;
        (void)err_set(&err, INGLE_FORMAT, "%s: there are no prompts", path);
        rc = cli_fail_err(c, &err);
    }
    cli_media_close(&o.media);
    c->arg = arg;
    c->n_arg = n_arg;
    mem_free(file[0]);
    if (rc)
        return rc;
    if (!o.json)
        printf("%llu prompts, %llu tokens: %llu best tokens are others, log-probabilities differ "
               "by %.4f in the mean, %.4f at most\n",
               (unsigned long long)o.n_prompts, (unsigned long long)o.n_tokens,
               (unsigned long long)o.n_other, o.n_tokens ? o.sum / (double)o.n_tokens : 0, o.most);
    return o.n_other ? DIFFERS : CLI_OK;
}
