/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "cli/wrap.h"
#include "cli/input.h"
#include "cli/editor.h"
#include "cli/talk.h"
#include "cli/hub.h"

#include "base/output.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/near.h"
#include "base/write.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_LINE = 64 << 20 };

struct chat {
    struct cli_talk talk;
    struct cli *c;
    struct cli_editor *editor; /* NULL: the input is no terminal */
    struct cli_reader input; /* what is no terminal */
    int rc;
    struct json_object *messages; /* with the system message, if there is one */
    struct str media; /* parts of the next message: pictures and sounds */
    struct cli_answer last;
    const char **stop;
    size_t n_stop;
    bool think, stats, colour, dim, leave;
    bool interrupted;            /* Ctrl-C was the last thing that was typed */
    struct cli_history *history; /* NULL: none */
    struct cli_wrap screen; /* of what the model writes */
};

/* ---- the screen ---- */

static void show(void *arg, enum ingle_event_kind kind, int call, const char *text, size_t n)
{
    struct chat *h = arg;
    (void)call;
    if (kind == INGLE_EVENT_REASONING && !h->dim) {
        if (h->colour)
            fputs("\033[2m", stdout);
        else
            cli_wrap_put(&h->screen, "(thinking) ", 11);
        h->dim = true;
    } else if (kind == INGLE_EVENT_CONTENT && h->dim) {
        fputs(h->colour ? "\033[0m\n" : "\n", stdout);
        h->dim = false;
        cli_wrap_new(&h->screen);
    }
    if (kind == INGLE_EVENT_CONTENT || kind == INGLE_EVENT_REASONING)
        cli_wrap_put(&h->screen, text, n);
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
    write_open(&s, '{');
    write_member(&s, "role", role);
    write_member_string(&s, "content", text, n);
    write_close(&s, '}');
    if (!str_ok(&s) || json_parse(s.at, s.n, NULL, &m, NULL))
        m = NULL;
    str_release(&s);
    return m;
}

/* The user's: with the pictures and sounds that were named before. */
static struct json_object *question_new(struct chat *h, const struct str *text)
{
    struct json_object *m = NULL;
    struct str s;
    if (!h->media.n)
        return message_new("user", text->at, text->n);
    str_init(&s);
    write_open(&s, '{');
    write_member(&s, "role", "user");
    write_key(&s, "content");
    write_open(&s, '[');
    str_add(&s, h->media.at, h->media.n);
    write_open(&s, '{');
    write_member(&s, "type", "text");
    write_member_string(&s, "text", text->at, text->n);
    write_close(&s, '}');
    write_close(&s, ']');
    write_close(&s, '}');
    if (!str_ok(&s) || json_parse(s.at, s.n, NULL, &m, NULL))
        m = NULL;
    str_release(&s);
    str_clear(&h->media);
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

/* A message joins the conversation, which takes it.  False: there is no memory, and it does not. */
static bool add(struct json_object *messages, struct json_object *m)
{
    if (m && messages && !json_object_array_add(messages, m))
        return true;
    json_object_put(m);
    return false;
}

static void say_no_memory(const struct chat *h)
{
    struct err err;
    err_set(&err, INGLE_NOMEM, "no memory for the conversation: its last message is not kept");
    (void)cli_fail_err(h->c, &err);
}

/* ---- answers ---- */

static ingle_status render(struct chat *h, struct ingle_prompt *out, struct ingle_error *error)
{
    size_t n;
    const char *text = json_object_to_json_string_length(
        h->messages, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, &n);
    struct ingle_medium *medium[CLI_MOST_MEDIA];
    size_t n_media;
    const ingle_status st = cli_media_of(&h->talk, h->messages, medium, &n_media, error);
    if (st)
        return st;
    const struct ingle_chat chat = {.messages = text, .n_messages = n, .thinking = h->think,
                                    .developer_own = cli_developer_own(h->c),
                                    .media = medium, .n_media = n_media};
    return ingle_chat_render(h->talk.model, &chat, out, error);
}

/* The answer's message joins the conversation; what came before an interrupt counts.  False: there
 * is no memory. */
static bool keep_answer(struct chat *h)
{
    struct json_object *m = NULL, *role = json_object_new_string("assistant");
    struct err err;
    if (json_parse(h->last.message, h->last.n_message, NULL, &m, &err) || !role ||
        json_object_object_add(m, "role", role)) {
        json_object_put(role);
        json_object_put(m);
        return false;
    }
    return add(h->messages, m);
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
    cli_wrap_new(&h->screen);
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
    if (!keep_answer(h)) { /* no question without its answer */
        say_no_memory(h);
        drop_last(h);
    }
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
           "/undo [N]      remove the last question, or the last N, and the answers\n"
           "/regen         answer the last question again\n"
           "/think [on|off] thinking; without a word: the other way\n"
           "/stats [on|off] speeds after each answer\n"
           "/image FILE    show a picture with the next message (/audio FILE: a sound)\n"
           "/show          the model, its context and the system message\n"
           "/save FILE     write the conversation as JSON\n"
           "/load FILE     read a conversation\n"
           "/history [on|off] keep what is typed for later chats\n"
           "/quit          end (also Ctrl-D, or Ctrl-C twice)\n"
           "Other names: /clear, /new: /reset; /bye, /exit: /quit; /regenerate, /retry: /regen; "
           "/?: /help; /set: see there.\n"
           "A line that ends in \\ continues in the next one, \"\"\" begins and ends a message of "
           "several lines;\n"
           "pasted lines are one message.  Tab completes a command.  A line that begins with a "
           "blank is not kept in the\n"
           "history.  Ctrl-C drops a line, and stops an answer.");
}

static void do_reset(struct chat *h, const char *rest)
{
    (void)rest;
    const bool system = n_messages(h) && strcmp(role_at(h, 0), "system") == 0;
    while (n_messages(h) > (system ? 1 : 0))
        drop_last(h);
    say(h, "The conversation is forgotten.");
}

/* False: there is no memory, and the conversation is as before. */
static bool set_system(struct chat *h, const char *text, size_t k)
{
    struct json_object *fresh = json_object_new_array();
    const size_t n = n_messages(h);
    bool ok = fresh && (!k || add(fresh, message_new("system", text, k)));
    for (size_t i = 0; i < n && ok; i++)
        if (i || strcmp(role_at(h, 0), "system") != 0)
            ok = add(fresh, json_object_get(json_object_array_get_idx(h->messages, i)));
    json_object_put(ok ? h->messages : fresh);
    h->messages = ok ? fresh : h->messages;
    return ok;
}

static void do_system(struct chat *h, const char *rest)
{
    if (!set_system(h, rest, strlen(rest)))
        say_no_memory(h);
    else
        say(h, *rest ? "The system message is set." : "The system message is removed.");
}

/* Takes the answers after the last question off; false: there is no question. */
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
    char text[64], *end = NULL;
    const long n = *rest ? strtol(rest, &end, 10) : 1;
    long i = 0;
    if (n < 1 || (end && *end)) {
        say(h, "usage: /undo [NUMBER OF QUESTIONS]");
        return;
    }
    for (; i < n && back_to_question(h); i++)
        drop_last(h);
    if (i > 1)
        snprintf(text, sizeof text, "The last %ld questions are taken back.", i);
    say(h, i > 1 ? text
           : i   ? "The last question is taken back."
                 : "There is nothing to take back.");
}

/* "on", "off" or nothing, which is the other way; false after saying that it is none of them. */
static bool turn(struct chat *h, const char *name, const char *rest, bool *what)
{
    char text[64];
    if (*rest && strcmp(rest, "on") != 0 && strcmp(rest, "off") != 0) {
        snprintf(text, sizeof text, "usage: /%s [on|off]", name);
        say(h, text);
        return false;
    }
    *what = *rest ? strcmp(rest, "on") == 0 : !*what;
    return true;
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
    if (!turn(h, "think", rest, &h->think))
        return;
    say(h, h->think ? "Thinking is on." : "Thinking is off.");
}

static void do_stats(struct chat *h, const char *rest)
{
    if (!turn(h, "stats", rest, &h->stats))
        return;
    say(h, h->stats ? "Speeds are shown after each answer." : "Speeds are not shown.");
    if (h->stats && h->last.message)
        cli_answer_print(stderr, &h->last);
}

static void do_history(struct chat *h, const char *rest)
{
    const bool off = strcmp(rest, "off") == 0;
    if (!off && strcmp(rest, "on") != 0)
        say(h, "usage: /history on|off");
    else if (off)
        say(h, h->history && cli_history_switch(h->history, false) ? "What is typed is not kept."
                                                                   : "There is no history.");
    else
        say(h, h->history && cli_history_switch(h->history, true)
                   ? "What is typed is kept for later chats."
                   : "There is no file for the history.");
}

/* An error names the folder that is missing, not a file that nobody asked for. */
static ingle_status check_folder(const char *path, struct err *err)
{
    char folder[PATH_MAX];
    struct stat st;
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path || (size_t)(slash - path) >= sizeof folder)
        return INGLE_OK;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    if (stat(folder, &st))
        return err_set(err, INGLE_IO, "%s: no such directory", folder);
    return S_ISDIR(st.st_mode) ? INGLE_OK
                               : err_set(err, INGLE_IO, "%s: it is no directory", folder);
}

static void do_save(struct chat *h, const char *rest)
{
    struct err err;
    size_t n;
    const char *text = json_object_to_json_string_length(
        h->messages, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE, &n);
    if (!*rest)
        say(h, "usage: /save FILE");
    else if (check_folder(rest, &err) ||
             output_save(&(struct output){.path = rest, .kind = OUTPUT_CHAT, .guard = h->c->guard},
                         text, n, &err))
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

static void add_media(struct chat *h, const char *rest, enum ingle_media_kind kind)
{
    struct ingle_error error;
    struct ingle_medium_info info;
    const struct cli_medium *m;
    char text[200];
    if (!*rest) {
        say(h, kind == INGLE_MEDIA_IMAGE ? "usage: /image FILE" : "usage: /audio FILE");
        return;
    }
    if (cli_media_add(&h->talk, rest, kind, &m, &error)) {
        cli_fail(h->c, &error);
        return;
    }
    cli_media_put(&h->media, m);
    ingle_medium_info(m->medium, &info);
    if (m->is_sound)
        snprintf(text, sizeof text, "A sound of %.1f s, %lld tokens, goes with the next message.",
                 info.seconds, (long long)info.n_tokens);
    else
        snprintf(text, sizeof text,
                 "A picture of %d x %d, %lld tokens, goes with the next message.", info.width,
                 info.height, (long long)info.n_tokens);
    say(h, text);
}

static void do_image(struct chat *h, const char *rest)
{
    add_media(h, rest, INGLE_MEDIA_IMAGE);
}

static void do_audio(struct chat *h, const char *rest)
{
    add_media(h, rest, INGLE_MEDIA_AUDIO);
}

static void do_quit(struct chat *h, const char *rest)
{
    (void)rest;
    h->leave = true;
}

static void show_model(const struct chat *h)
{
    struct ingle_model_info m;
    struct ingle_engine_info e;
    char text[512];
    ingle_model_info(h->talk.model, &m);
    ingle_engine_info(h->talk.engine, &e);
    snprintf(text, sizeof text, "%s: %s, %lld tokens of context, %d threads, %s.", m.path, m.arch,
             (long long)e.n_ctx, e.threads, e.cpu);
    say(h, CLI_SHOWN(text));
}

static void do_show(struct chat *h, const char *rest)
{
    struct json_object *content = NULL;
    (void)rest; /* Ollama's words for parts of it */
    show_model(h);
    if (n_messages(h) && strcmp(role_at(h, 0), "system") == 0)
        json_object_object_get_ex(json_object_array_get_idx(h->messages, 0), "content", &content);
    say(h, content ? "The system message:" : "There is no system message (/system TEXT).");
    if (content) {
        cli_wrap_new(&h->screen);
        cli_wrap_put(&h->screen, json_object_get_string(content),
                     (size_t)json_object_get_string_len(content));
        putchar('\n');
    }
}

/* Ollama's way to say other things. */
static void do_set(struct chat *h, const char *rest)
{
    static const struct {
        const char *word, *option;
    } options[] = {
        {"parameter num_ctx", "--ctx N"},
        {"parameter temperature", "--temp T"},
        {"parameter seed", "--seed N"},
        {"parameter", "--temp, --top-k, --top-p, --predict and others: ingle chat --help"},
        {"format", "--json-object or --json-schema FILE"}};
    char text[160];
    if (strncmp(rest, "system ", 7) == 0) {
        do_system(h, rest + 7);
    } else if (strcmp(rest, "verbose") == 0 || strcmp(rest, "quiet") == 0) {
        do_stats(h, *rest == 'v' ? "on" : "off");
    } else if (strcmp(rest, "think") == 0 || strcmp(rest, "nothink") == 0) {
        do_think(h, *rest == 't' ? "on" : "off");
    } else {
        for (size_t i = 0; i < sizeof options / sizeof *options; i++)
            if (strncmp(rest, options[i].word, strlen(options[i].word)) == 0) {
                snprintf(text, sizeof text, "It is an option of the start here: %s.",
                         options[i].option);
                say(h, text);
                return;
            }
        say(h, "usage: /set system TEXT | think | nothink | verbose | quiet (also /system, /think, "
               "/stats)");
    }
}

static const struct {
    const char *name;
    void (*fn)(struct chat *h, const char *rest);
    enum { NOTHING, ANYTHING, ON_OFF, A_FILE } rest; /* its argument */
} slash[] = {
    {"help", do_help, NOTHING},
    {"reset", do_reset, NOTHING},
    {"system", do_system, ANYTHING},
    {"undo", do_undo, ANYTHING},
    {"regen", do_regen, NOTHING},
    {"think", do_think, ON_OFF},
    {"stats", do_stats, ON_OFF},
    {"image", do_image, A_FILE},
    {"audio", do_audio, A_FILE},
    {"save", do_save, A_FILE},
    {"load", do_load, A_FILE},
    {"history", do_history, ON_OFF},
    {"quit", do_quit, NOTHING},
    {"exit", do_quit, NOTHING},
    /* llama-cli's and Ollama's names */
    {"?", do_help, NOTHING},
    {"clear", do_reset, NOTHING},
    {"new", do_reset, NOTHING},
    {"bye", do_quit, NOTHING},
    {"regenerate", do_regen, NOTHING},
    {"retry", do_regen, NOTHING},
    {"set", do_set, ANYTHING},
    {"show", do_show, ANYTHING},
};

/* ---- Tab ---- */

/* Names in the folder of a path that has begun; ~ is no home here, as it is none for the
 * commands. */
static void offer_files(struct cli_editor *e, const char *begun)
{
    enum { MOST_FILES = 200, MOST_SEEN = 100000 };
    char path[PATH_MAX * 2];
    const char *slash_at = strrchr(begun, '/');
    const int n_folder = slash_at ? (int)(slash_at + 1 - begun) : 0;
    const char *name = begun + n_folder;
    const size_t n_name = strlen(name);
    if (strlen(begun) >= PATH_MAX)
        return;
    snprintf(path, sizeof path, "%.*s", n_folder, begun);
    DIR *dir = opendir(n_folder ? path : ".");
    const struct dirent *entry;
    for (int n = 0, seen = 0; dir && n < MOST_FILES && seen < MOST_SEEN && (entry = readdir(dir));
         seen++) {
        struct stat st;
        if (strncmp(entry->d_name, name, n_name) != 0 || (entry->d_name[0] == '.' && !n_name))
            continue;
        snprintf(path, sizeof path, "%.*s%s", n_folder, begun, entry->d_name);
        const bool folder = !stat(path, &st) && S_ISDIR(st.st_mode);
        if (folder)
            snprintf(path + strlen(path), sizeof path - strlen(path), "/");
        cli_editor_offer(e, path, strlen(begun), false);
        n++;
    }
    if (dir)
        closedir(dir);
}

static void offer(void *arg, struct cli_editor *e, const char *before)
{
    static const char *const on_off[] = {"on", "off"};
    const size_t n = strcspn(before, " ");
    const char *rest = before + n + strspn(before + n, " ");
    (void)arg;
    for (size_t i = 0; i < sizeof slash / sizeof *slash; i++) {
        char word[32];
        snprintf(word, sizeof word, "/%s", slash[i].name);
        if (!before[n] && strncmp(word, before, n) == 0) {
            cli_editor_offer(e, word, n, slash[i].rest != NOTHING);
        } else if (before[n] && strlen(word) == n && strncmp(word, before, n) == 0) {
            for (size_t k = 0; slash[i].rest == ON_OFF && k < 2; k++)
                if (strncmp(on_off[k], rest, strlen(rest)) == 0)
                    cli_editor_offer(e, on_off[k], strlen(rest), false);
            if (slash[i].rest == A_FILE)
                offer_files(e, rest);
        }
    }
}

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
        if (strcmp(name, slash[i].name) != 0)
            continue;
        if (slash[i].rest == NOTHING && *rest) {
            snprintf(text, sizeof text, "/%s takes no argument.", name);
            say(h, text);
        } else {
            slash[i].fn(h, rest);
        }
        cli_push(h->c);
        return;
    }
    const char *meant = near_word(word, N, name);
    if (strcmp(name, "model") == 0)
        snprintf(text, sizeof text, "A chat has one model: start another with ingle chat -m FILE.");
    else
        snprintf(text, sizeof text, "There is no command /%s.%s%s%s (/help lists all.)", name,
                 meant ? " Did you mean /" : "", meant ? meant : "", meant ? "?" : "");
    say(h, CLI_SHOWN(text));
}

/* ---- input ---- */

/* Whether more input is there already: the rest of a paste. */
static bool more_waits(void)
{
    struct pollfd p = {STDIN_FILENO, POLLIN, 0};
    return poll(&p, 1, 15) > 0 && (p.revents & POLLIN);
}

/* One line without its end after what is in out. */
static enum cli_got read_line(struct chat *h, const char *prompt, struct str *out)
{
    if (h->editor)
        return cli_editor_line(h->editor, prompt, out);
    struct str line;
    struct err err;
    str_init(&line);
    const int got = cli_reader_line(&h->input, MOST_LINE, &line, &err);
    if (got < 0)
        h->rc = cli_fail_err(h->c, &err);
    str_add(out, line.at, line.n);
    str_release(&line);
    return got > 0 ? CLI_LINE : CLI_NO_LINE;
}

static const char QUOTES[] = "\"\"\"";
enum { N_QUOTES = sizeof QUOTES - 1 };

/* A message between three quotes, as Ollama has it: out begins with them.  Takes them off. */
static enum cli_got read_quoted(struct chat *h, struct str *out)
{
    enum cli_got got = CLI_LINE;
    out->n -= N_QUOTES;
    memmove(out->at, out->at + N_QUOTES, out->n + 1);
    while (got == CLI_LINE &&
           !(out->n >= N_QUOTES && memcmp(out->at + out->n - N_QUOTES, QUOTES, N_QUOTES) == 0)) {
        if (out->n > MOST_LINE)
            break;
        str_addc(out, '\n');
        got = read_line(h, "... ", out);
    }
    if (got == CLI_LINE && out->n >= N_QUOTES)
        out->at[out->n -= N_QUOTES] = 0;
    return got == CLI_NO_LINE ? CLI_LINE : got; /* at the end of a file what there is counts */
}

/* Lines that begin with a blank are for this chat only, as in shells. */
static void remember(struct chat *h, const struct str *line)
{
    cli_editor_remember(h->editor, line->at, line->n);
    cli_history_add(h->history, line->at, line->n);
}

/* A message: lines joined while they end in a backslash or are pasted together.  A command
 * stands alone: what was typed ahead after it is not its text. */
static enum cli_got read_message(struct chat *h, struct str *out)
{
    str_clear(out);
    if (h->editor)
        cli_interrupt_prompt(true, h->interrupted);
    enum cli_got got = read_line(h, "> ", out);
    if (got == CLI_LINE && out->n >= N_QUOTES && memcmp(out->at, QUOTES, N_QUOTES) == 0) {
        got = read_quoted(h, out);
    } else {
        while (got == CLI_LINE) {
            if (out->n && out->at[out->n - 1] == '\\')
                out->at[--out->n] = 0;
            else if (!h->editor || (out->n && out->at[0] == '/') || !more_waits())
                break;
            str_addc(out, '\n');
            const enum cli_got more = read_line(h, "... ", out);
            if (more == CLI_NO_LINE)
                break;
            got = more == CLI_LINE_BREAK ? CLI_LINE_DROPPED : more;
        }
    }
    h->interrupted = got == CLI_LINE_BREAK;
    if (h->editor)
        cli_interrupt_prompt(false, h->interrupted);
    if (got == CLI_LINE && h->editor && out->n)
        remember(h, out);
    return str_ok(out) ? got : CLI_NO_LINE;
}

static void greet(const struct chat *h)
{
    if (!h->editor || !h->c->screen.progress)
        return;
    show_model(h);
    say(h, "/help explains.");
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
    while (!h->leave && !ferror(stdout)) {
        const bool interrupted = h->interrupted;
        const enum cli_got got = read_message(h, &line);
        if (got == CLI_NO_LINE)
            break;
        if (got == CLI_LINE_BREAK && interrupted) {
            h->rc = CLI_INTERRUPTED;
            break;
        }
        if (h->interrupted)
            say(h, CLI_LEAVE_HINT);
        if (got != CLI_LINE || is_blank(&line))
            continue;
        if (line.at[0] == '/') {
            run_slash(h, line.at + 1);
            continue;
        }
        if (add(h->messages, question_new(h, &line)))
            answer(h);
        else
            say_no_memory(h);
    }
    if (h->editor && !h->leave)
        putchar('\n');
    str_release(&line);
    return h->rc;
}

int cli_chat(struct cli *c)
{
    struct chat h = {.c = c, .think = ingle_config_flag(c->config, "think")};
    if (c->n_arg && (access(c->arg[0], F_OK) == 0 || cli_names_model(c, c->arg[0])))
        return cli_usage(c, "'chat' takes a question, not a file or a model; a model is -m %s",
                         c->arg[0]);
    if (c->n_arg)
        return cli_run(c);
    while (ingle_config_text(c->config, "stop", h.n_stop))
        h.n_stop++;
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
        cli_interrupt_terminal();
        /* before what takes long: what is typed meanwhile is for the first prompt */
        h.editor = cli_editor_open();
    }
    int rc = cli_talk_open(c, &h.talk);
    if (rc) {
        cli_editor_close(h.editor);
        return rc;
    }
    h.stop = mem_calloc(h.n_stop + 1, sizeof *h.stop);
    h.messages = json_object_new_array();
    for (size_t i = 0; h.stop && i < h.n_stop; i++)
        h.stop[i] = ingle_config_text(c->config, "stop", i);
    const bool ready =
        h.stop && h.messages && (!h.talk.system || set_system(&h, h.talk.system, h.talk.n_system));
    str_init(&h.media);
    rc = cli_media_options(c, &h.talk, &h.media);
    cli_reader_init(&h.input, stdin, "standard input", false);
    h.colour = c->screen.colour && isatty(STDOUT_FILENO);
    cli_wrap_init(&h.screen, stdout);
    if (h.editor) {
        cli_editor_complete(h.editor, offer, NULL);
        if (!ingle_config_flag(c->config, "no-history"))
            h.history = cli_history_open(c, h.editor);
    }
    greet(&h);
    struct err err;
    err_set(&err, INGLE_NOMEM, "no memory for a conversation");
    rc = rc ? rc : ready ? converse(&h) : cli_fail_err(c, &err);
    cli_editor_close(h.editor);
    cli_history_close(h.history);
    cli_answer_release(&h.last);
    json_object_put(h.messages);
    str_release(&h.media);
    mem_free(h.stop);
    cli_talk_close(&h.talk);
    return rc;
}
