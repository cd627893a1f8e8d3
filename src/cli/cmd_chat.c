/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"

#include "base/output.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/near.h"

#include <ctype.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { MOST_LINE = 64 << 20 };

struct chat {
    struct cli_talk talk;
    struct cli *c;
    struct cli_editor *editor; /* NULL: the input is no terminal */
    struct cli_reader input; /* what is no terminal */
    int rc;
    struct json_object *messages; /* with the system message, if there is one */
    struct cli_answer last;
    const char **stop;
    size_t n_stop;
    bool think, stats, colour, dim, leave;
};

/* ---- the screen ---- */

static void show(void *arg, enum ingle_event_kind kind, int call, const char *text, size_t n)
{
    struct chat *h = arg;
    (void)call;
    if (kind == INGLE_EVENT_REASONING && !h->dim) {
        fputs(h->colour ? "\033[2m" : "(thinking) ", stdout);
        h->dim = true;
    } else if (kind == INGLE_EVENT_CONTENT && h->dim) {
        fputs(h->colour ? "\033[0m\n" : "\n", stdout);
        h->dim = false;
    }
    if (kind == INGLE_EVENT_CONTENT || kind == INGLE_EVENT_REASONING)
        cli_put_text(stdout, text, n);
    cli_push(h->c);
}

static void say(const struct chat *h, const char *text)
{
    printf(h->colour ? "\033[2m%s\033[0m\n" : "%s\n", text);
}

/* ---- messages ---- */

/* NULL: out of memory. */
static struct json_object *message_new(const char *role, const char *text, size_t n)
{
    struct json_object *m = NULL;
    struct str s;
    str_init(&s);
    str_addf(&s, "{\"role\": \"%s\", \"content\": ", role);
    str_add_json(&s, text, n);
    str_addc(&s, '}');
    if (!str_ok(&s) || json_parse(s.at, s.n, NULL, &m, NULL))
        m = NULL;
    str_release(&s);
    return m;
}

static size_t n_messages(const struct chat *h)
{
    return json_object_array_length(h->messages);
}

static const char *role_at(const struct chat *h, size_t i)
{
    struct json_object *role = NULL;
    json_object_object_get_ex(json_object_array_get_idx(h->messages, i), "role", &role);
    return role ? json_object_get_string(role) : "";
}

static void drop_last(struct chat *h)
{
    json_object_array_del_idx(h->messages, n_messages(h) - 1, 1);
}

/* ---- answers ---- */

static ingle_status render(struct chat *h, struct ingle_prompt *out, struct ingle_error *error)
{
    size_t n;
    const char *text = json_object_to_json_string_length(
        h->messages, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, &n);
    const struct ingle_chat chat = {.messages = text, .n_messages = n, .thinking = h->think,
                                    .developer_own = cli_developer_own(h->c)};
    return ingle_chat_render(h->talk.model, &chat, out, error);
}

/* The answer's message joins the conversation; what came before an interrupt counts. */
static void keep_answer(struct chat *h)
{
    struct json_object *m = NULL;
    struct err err;
    if (json_parse(h->last.message, h->last.n_message, NULL, &m, &err))
        return;
    json_object_object_add(m, "role", json_object_new_string("assistant"));
    json_object_array_add(h->messages, m);
}

/* Answers what is asked last; on failure the question is taken back. */
static void answer(struct chat *h)
{
    struct ingle_prompt p = {0};
    struct ingle_error error;
    cli_answer_release(&h->last);
    ingle_status st = render(h, &p, &error);
    const struct ingle_reader_options o = {
        .open_thought = p.open_thought, .stop = h->stop, .n_stop = h->n_stop};
    h->dim = false;
    if (!st)
        st = cli_talk_answer(&h->talk, &p, &o, show, h, &h->last, &error);
    if (h->dim && h->colour)
        fputs("\033[0m", stdout);
    putchar('\n');
    ingle_prompt_release(&p);
    if (st) {
        cli_fail(h->c, &error);
        drop_last(h);
        return;
    }
    keep_answer(h);
    if (strcmp(h->last.end, "stop") != 0) {
        char text[64];
        snprintf(text, sizeof text, "(%s)",
                 strcmp(h->last.end, "length") == 0 ? "cut: the limit is reached" : h->last.end);
        say(h, text);
    }
    cli_push(h->c);
    if (h->stats)
        cli_answer_print(stderr, &h->last);
}

/* ---- slash commands ---- */

static void do_help(struct chat *h, const char *rest)
{
    (void)rest;
    say(h, "/system TEXT   replace the system message (nothing: remove it)\n"
           "/reset         start a new conversation\n"
           "/undo          remove the last question and its answer\n"
           "/regen         answer the last question again\n"
           "/think         turn thinking on or off\n"
           "/stats         turn times after each answer on or off\n"
           "/save FILE     write the conversation as JSON\n"
           "/load FILE     read a conversation\n"
           "/quit          end (also Ctrl-D, or Ctrl-C twice)\n"
           "A line that ends in \\ continues in the next one; pasted lines are one message.");
}

static void do_reset(struct chat *h, const char *rest)
{
    (void)rest;
    const bool system = n_messages(h) && strcmp(role_at(h, 0), "system") == 0;
    while (n_messages(h) > (system ? 1 : 0))
        drop_last(h);
    say(h, "The conversation is forgotten.");
}

static void set_system(struct chat *h, const char *text, size_t k)
{
    struct json_object *fresh = json_object_new_array();
    const size_t n = n_messages(h);
    if (k)
        json_object_array_add(fresh, message_new("system", text, k));
    for (size_t i = 0; i < n; i++)
        if (i || strcmp(role_at(h, 0), "system") != 0)
            json_object_array_add(fresh, json_object_get(json_object_array_get_idx(h->messages, i)));
    json_object_put(h->messages);
    h->messages = fresh;
}

static void do_system(struct chat *h, const char *rest)
{
    set_system(h, rest, strlen(rest));
    say(h, *rest ? "The system message is set." : "The system message is removed.");
}

/* Takes the answers behind the last question off; false: there is no question. */
static bool back_to_question(struct chat *h)
{
    size_t i = n_messages(h);
    while (i && strcmp(role_at(h, i - 1), "user") != 0)
        i--;
    while (i && n_messages(h) > i)
        drop_last(h);
    return i > 0;
}

static void do_undo(struct chat *h, const char *rest)
{
    (void)rest;
    if (!back_to_question(h)) {
        say(h, "There is nothing to take back.");
        return;
    }
    drop_last(h);
    say(h, "The last question is taken back.");
}

static void do_regen(struct chat *h, const char *rest)
{
    (void)rest;
    if (!back_to_question(h)) {
        say(h, "There is no question yet.");
        return;
    }
    h->talk.sampling.seed++; /* the same seed would give the same answer */
    answer(h);
}

static void do_think(struct chat *h, const char *rest)
{
    (void)rest;
    h->think = !h->think;
    say(h, h->think ? "Thinking is on." : "Thinking is off.");
}

static void do_stats(struct chat *h, const char *rest)
{
    (void)rest;
    h->stats = !h->stats;
    say(h, h->stats ? "Times are shown after each answer." : "Times are not shown.");
    if (h->stats && h->last.message)
        cli_answer_print(stderr, &h->last);
}

static void do_save(struct chat *h, const char *rest)
{
    struct err err;
    size_t n;
    const char *text = json_object_to_json_string_length(
        h->messages, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE, &n);
    if (!*rest)
        say(h, "usage: /save FILE");
    else if (output_save(&(struct output){.path = rest, .kind = OUTPUT_CHAT, .guard = h->c->guard}, text, n, &err))
        cli_fail_err(h->c, &err);
    else
        say(h, "The conversation is saved.");
}

static ingle_status check_messages(struct json_object *o, const char *path, struct err *err)
{
    struct json_object *role;
    if (!json_object_is_type(o, json_type_array))
        return err_set(err, INGLE_FORMAT, "%s: it holds no list of messages", path);
    for (size_t i = 0; i < json_object_array_length(o); i++)
        if (!json_object_object_get_ex(json_object_array_get_idx(o, i), "role", &role) ||
            !json_object_is_type(role, json_type_string))
            return err_set(err, INGLE_FORMAT, "%s: message %zu has no role", path, i);
    return INGLE_OK;
}

static void do_load(struct chat *h, const char *rest)
{
    struct err err;
    struct json_object *o = NULL;
    char *text = NULL;
    size_t n;
    if (!*rest) {
        say(h, "usage: /load FILE");
        return;
    }
    ingle_status st = cli_slurp_json(rest, &text, &n, &err);
    if (!st)
        st = json_parse(text, n, NULL, &o, &err);
    if (!st)
        st = check_messages(o, rest, &err);
    mem_free(text);
    if (st) {
        cli_fail_err(h->c, &err);
        json_object_put(o);
        return;
    }
    json_object_put(h->messages);
    h->messages = o;
    printf("%zu messages are loaded.\n", n_messages(h));
}

static void do_quit(struct chat *h, const char *rest)
{
    (void)rest;
    h->leave = true;
}

static const struct {
    const char *name;
    void (*fn)(struct chat *h, const char *rest);
} slash[] = {
    {"help", do_help},   {"reset", do_reset}, {"system", do_system}, {"undo", do_undo},
    {"regen", do_regen}, {"think", do_think}, {"stats", do_stats},   {"save", do_save},
    {"load", do_load},   {"quit", do_quit},   {"exit", do_quit},
};

static void run_slash(struct chat *h, const char *line)
{
    enum { N = sizeof slash / sizeof *slash };
    const char *word[N];
    char name[32], text[128];
    const size_t n = strcspn(line, " \t\n");
    snprintf(name, sizeof name, "%.*s", (int)(n < 31 ? n : 31), line);
    const char *rest = line + n + strspn(line + n, " \t\n");
    for (size_t i = 0; i < N; i++) {
        word[i] = slash[i].name;
        if (strcmp(name, slash[i].name) == 0) {
            slash[i].fn(h, rest);
            cli_push(h->c);
            return;
        }
    }
    const char *meant = near_word(word, N, name);
    snprintf(text, sizeof text, "There is no command /%s%s%s (see /help).", name,
             meant ? "; did you mean /" : "", meant ? meant : "");
    say(h, CLI_SHOWN(text));
}

/* ---- input ---- */

/* Whether more input is there already: the rest of a paste. */
static bool more_waits(void)
{
    struct pollfd p = {STDIN_FILENO, POLLIN, 0};
    return poll(&p, 1, 15) > 0 && (p.revents & POLLIN);
}

/* One line without its end behind what is in out; false: there is no more. */
static bool read_line(struct chat *h, struct str *out)
{
    if (h->editor)
        return cli_editor_line(h->editor, out);
    struct str line;
    struct err err;
    str_init(&line);
    const int got = cli_reader_line(&h->input, MOST_LINE, &line, &err);
    if (got < 0)
        h->rc = cli_fail_err(h->c, &err);
    str_add(out, line.at, line.n);
    str_release(&line);
    return got > 0;
}

/* A message: lines joined while they end in a backslash or are pasted together.  A command
 * stands alone: what was typed ahead behind it is not its text. */
static bool read_message(struct chat *h, struct str *out)
{
    str_clear(out);
    cli_interrupt_prompt(h->editor != NULL);
    bool ok = read_line(h, out);
    while (ok) {
        if (out->n && out->at[out->n - 1] == '\\')
            out->at[--out->n] = 0;
        else if (!h->editor || (out->n && out->at[0] == '/') || !more_waits())
            break;
        str_addc(out, '\n');
        if (!read_line(h, out))
            break;
    }
    cli_interrupt_prompt(false);
    if (ok && h->editor && out->n)
        cli_editor_remember(h->editor, out->at, out->n);
    return ok && str_ok(out);
}

static void greet(const struct chat *h)
{
    struct ingle_model_info m;
    struct ingle_engine_info e;
    char text[512];
    if (!h->editor || !h->c->screen.progress)
        return;
    ingle_model_info(h->talk.model, &m);
    ingle_engine_info(h->talk.engine, &e);
    snprintf(text, sizeof text, "%s: %s, %lld tokens of context, %d threads, %s.  /help explains.",
             m.path, m.arch, (long long)e.n_ctx, e.threads, e.cpu);
    say(h, CLI_SHOWN(text));
}

static bool is_blank(const struct str *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (!isspace((unsigned char)s->at[i]))
            return false;
    return true;
}

static int converse(struct chat *h)
{
    struct str line;
    str_init(&line);
    while (!h->leave && !ferror(stdout) && read_message(h, &line)) {
        if (is_blank(&line))
            continue;
        if (line.at[0] == '/') {
            run_slash(h, line.at + 1);
            continue;
        }
        json_object_array_add(h->messages, message_new("user", line.at, line.n));
        answer(h);
    }
    if (h->editor && !h->leave)
        putchar('\n');
    str_release(&line);
    return h->rc;
}

int cli_chat(struct cli *c)
{
    struct chat h = {.c = c, .think = ingle_config_flag(c->config, "think")};
    if (c->n_arg)
        return cli_usage(c, "'chat' takes no argument such as '%s'", c->arg[0]);
    while (ingle_config_text(c->config, "stop", h.n_stop))
        h.n_stop++;
    int rc = cli_talk_open(c, &h.talk);
    if (rc)
        return rc;
    h.stop = mem_calloc(h.n_stop + 1, sizeof *h.stop);
    h.messages = json_object_new_array();
    for (size_t i = 0; h.stop && i < h.n_stop; i++)
        h.stop[i] = ingle_config_text(c->config, "stop", i);
    if (h.messages && h.talk.system)
        set_system(&h, h.talk.system, h.talk.n_system);
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO))
        h.editor = cli_editor_open("> ");
    cli_reader_init(&h.input, stdin, "standard input", false);
    h.colour = c->screen.colour && isatty(STDOUT_FILENO);
    greet(&h);
    rc = h.stop && h.messages ? converse(&h) : CLI_FAILURE;
    cli_editor_close(h.editor);
    cli_answer_release(&h.last);
    json_object_put(h.messages);
    mem_free(h.stop);
    cli_talk_close(&h.talk);
    return rc;
}
