/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/input.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void write_ids(struct str *out, const int32_t *id, size_t n)
{
    write_open(out, '[');
    for (size_t i = 0; i < n; i++)
        write_int(out, id[i]);
    write_close(out, ']');
}

static void write_hex(struct str *out, const char *bytes, size_t n)
{
    struct str hex;
    str_init(&hex);
    for (size_t i = 0; i < n; i++)
        str_addf(&hex, "%02x", (unsigned char)bytes[i]);
    write_string(out, hex.at, hex.n);
    out->failed |= !str_ok(&hex);
    str_release(&hex);
}

/* One line {"error": ...}: the next line of the input goes on. */
static int print_error(const char *text)
{
    struct str out;
    cli_json(&out);
    write_open(&out, '{');
    write_member(&out, "error", text);
    write_close(&out, '}');
    cli_json_end(&out, "\n");
    return CLI_OK;
}

/* ---- tokenize ---- */

/* Text from hexadecimal digits, or false. */
static bool from_hex(const char *hex, size_t n, struct str *out)
{
    for (size_t i = 0; i + 1 < n; i += 2) {
        const int a = str_hex_value(hex[i]), b = str_hex_value(hex[i + 1]);
        if (a < 0 || b < 0)
            return false;
        str_addc(out, (char)(a << 4 | b));
    }
    return n % 2 == 0;
}

static bool member_flag(struct json_object *o, const char *key)
{
    struct json_object *v;
    return json_object_object_get_ex(o, key, &v) && json_object_get_boolean(v);
}

static int encode_line(const struct ingle_model *m, struct json_object *o)
{
    struct json_object *v = NULL;
    struct str text;
    struct ingle_error error;
    int32_t *ids = NULL;
    size_t n_ids;
    int rc;
    str_init(&text);
    bool ok = true;
    if (json_object_object_get_ex(o, "text", &v) && json_object_is_type(v, json_type_string))
        str_add(&text, json_object_get_string(v), (size_t)json_object_get_string_len(v));
    else if (json_object_object_get_ex(o, "bytes", &v) && json_object_is_type(v, json_type_string))
        ok = from_hex(json_object_get_string(v), (size_t)json_object_get_string_len(v), &text);
    else
        ok = false;
    const int flags = (member_flag(o, "add_special") ? INGLE_ADD_SPECIAL : 0) |
                      (member_flag(o, "parse_special") ? INGLE_PARSE_SPECIAL : 0);
    if (!ok) {
        rc = print_error("there is no 'text', 'bytes' (hexadecimal) or 'ids'");
    } else if (ingle_tokenize(m, text.at, text.n, flags, &ids, &n_ids, &error)) {
        rc = print_error(error.text);
    } else {
        struct str out;
        cli_json(&out);
        write_open(&out, '{');
        write_key(&out, "ids");
        write_ids(&out, ids, n_ids);
        write_close(&out, '}');
        cli_json_end(&out, "\n");
        rc = CLI_OK;
    }
    ingle_free(ids);
    str_release(&text);
    return rc;
}

static bool read_ids(struct json_object *list, int32_t **out, size_t *n)
{
    *n = json_object_array_length(list);
    int32_t *id = mem_calloc(*n + 1, sizeof *id);
    if (!id)
        return false;
    *out = id;
    for (size_t i = 0; i < *n; i++) {
        struct json_object *v = json_object_array_get_idx(list, i);
        const int64_t x = json_object_get_int64(v);
        if (!json_object_is_type(v, json_type_int) || x < INT32_MIN || x > INT32_MAX)
            return false;
        id[i] = (int32_t)x;
    }
    return true;
}

static int decode_line(const struct ingle_model *m, struct json_object *o, struct json_object *list)
{
    const bool special = member_flag(o, "special");
    struct ingle_error error;
    int32_t *id = NULL;
    size_t n_ids, n;
    char *text = NULL;
    int rc = CLI_OK;
    if (!read_ids(list, &id, &n_ids)) {
        rc = print_error("'ids' is no list of token ids");
    } else if (ingle_detokenize(m, id, n_ids, special, &text, &n, &error)) {
        rc = print_error(error.text);
    } else {
        struct str out;
        cli_json(&out);
        write_open(&out, '{');
        write_member_string(&out, "text", text, n);
        write_key(&out, "bytes");
        write_hex(&out, text, n);
        write_key(&out, "pieces");
        write_open(&out, '[');
        for (size_t i = 0; i < n_ids; i++) {
            char *piece;
            size_t k;
            if (ingle_detokenize(m, id + i, 1, special, &piece, &k, &error))
                break;
            write_hex(&out, piece, k);
            ingle_free(piece);
        }
        write_close(&out, ']');
        write_close(&out, '}');
        cli_json_end(&out, "\n");
    }
    ingle_free(text);
    mem_free(id);
    return rc;
}

static int tokenize_line(struct cli *c, void *arg, char *line, size_t n)
{
    (void)c;
    struct json_object *o = NULL, *v;
    struct err err;
    int rc;
    if (json_parse(line, n, NULL, &o, &err))
        return print_error(err.msg);
    if (json_object_is_type(o, json_type_object) && json_object_object_get_ex(o, "ids", &v) &&
        json_object_is_type(v, json_type_array) && !json_object_object_get(o, "text") &&
        (json_object_object_get(o, "special") || !json_object_object_get(o, "bytes")))
        rc = decode_line(arg, o, v);
    else
        rc = encode_line(arg, o);
    json_object_put(o);
    return rc;
}

static int encode_input(struct cli *c, const struct ingle_model *m)
{
    struct err err;
    struct ingle_error error;
    char *text = NULL;
    int32_t *ids = NULL;
    size_t n, n_ids;
    int rc = CLI_OK;
    const int flags = (ingle_config_flag(c->config, "add-special") ? INGLE_ADD_SPECIAL : 0) |
                      (ingle_config_flag(c->config, "parse-special") ? INGLE_PARSE_SPECIAL : 0);
    if (cli_input(c, &text, &n, &err))
        rc = cli_fail_err(c, &err);
    else if (ingle_tokenize(m, text, n, flags, &ids, &n_ids, &error))
        rc = cli_fail(c, &error);
    else if (ingle_config_flag(c->config, "json")) {
        struct str out;
        cli_json(&out);
        write_ids(&out, ids, n_ids);
        cli_json_end(&out, "\n");
    } else {
        for (size_t i = 0; i < n_ids; i++)
            printf("%s%d", i ? " " : "", ids[i]);
        putchar('\n');
    }
    ingle_free(ids);
    mem_free(text);
    return rc;
}

/* Ids separated by anything that is no digit or sign. */
static int decode_input(struct cli *c, const struct ingle_model *m)
{
    struct err err;
    struct ingle_error error;
    char *text = NULL, *out;
    size_t n, cap = 0, n_ids = 0;
    int32_t *ids = NULL;
    int rc = CLI_OK;
    if (cli_input(c, &text, &n, &err))
        return cli_fail_err(c, &err);
    for (char *p = text; *p && !rc;) {
        p += strcspn(p, "-0123456789");
        if (!*p)
            break;
        char *end;
        errno = 0;
        const long id = strtol(p, &end, 10);
        if (end == p || errno || id < INT32_MIN || id > INT32_MAX)
            rc = cli_usage(c, "'%.20s' is no token id", p);
        else if (!mem_grow(&ids, &cap, n_ids + 1, sizeof *ids))
            rc = cli_usage(c, "no memory for %zu ids", n_ids);
        else
            ids[n_ids++] = (int32_t)id;
        p = end;
    }
    if (!rc && !n_ids && text[strspn(text, " \t\r\n[]")])
        rc = cli_usage(c, "there is no token id in '%.40s'", text);
    if (!rc && ingle_detokenize(m, ids, n_ids, ingle_config_flag(c->config, "special"), &out, &n,
                                &error)) {
        rc = cli_fail(c, &error);
    } else if (!rc) {
        if (ingle_config_flag(c->config, "json"))
            cli_print_json(out, n);
        else
            cli_put_text(stdout, out, n);
        putchar('\n');
        ingle_free(out);
    }
    mem_free(ids);
    mem_free(text);
    return rc;
}

int cli_tokenize(struct cli *c)
{
    struct ingle_error error;
    struct ingle_model *m;
    if (cli_open_model(c, &m, &error))
        return cli_fail(c, &error);
    int rc;
    if (ingle_config_flag(c->config, "jsonl"))
        rc = cli_lines(c, CLI_JSON, 0, tokenize_line, m);
    else if (ingle_config_flag(c->config, "decode"))
        rc = decode_input(c, m);
    else
        rc = encode_input(c, m);
    ingle_model_close(m);
    return rc;
}

/* ---- render, parse ---- */

struct words {
    struct ingle_model *model; /* NULL: none was requested and the family is another one */
    const char *family;
};

static void print_prompt(const struct ingle_prompt *p)
{
    struct str out;
    cli_json(&out);
    write_open(&out, '{');
    write_member_string(&out, "prompt", p->text, p->n_text);
    if (p->ids) {
        write_key(&out, "ids");
        write_ids(&out, p->ids, p->n_ids);
    }
    write_member_bool(&out, "open_thought", p->open_thought);
    write_close(&out, '}');
    cli_json_end(&out, "\n");
}

static int render_line(struct cli *c, void *arg, char *line, size_t n)
{
    (void)c;
    const struct words *w = arg;
    struct ingle_prompt p;
    struct ingle_error error;
    if (ingle_render_case(w->family, w->model, line, n, &p, &error))
        return print_error(error.text);
    print_prompt(&p);
    ingle_prompt_release(&p);
    return CLI_OK;
}

/* The messages: JSON from a file, or one user's message from the arguments. */
static ingle_status read_messages(struct cli *c, char **out, size_t *n, struct err *err)
{
    char *text;
    ingle_status st = cli_input(c, &text, n, err);
    if (st)
        return st;
    if (!c->n_arg || ingle_config_is_set(c->config, "file")) {
        *out = text;
        return INGLE_OK;
    }
    struct str s;
    str_init(&s);
    write_open(&s, '[');
    write_open(&s, '{');
    write_member(&s, "role", "user");
    write_member_string(&s, "content", text, *n);
    write_close(&s, '}');
    write_close(&s, ']');
    mem_free(text);
    *n = s.n;
    *out = str_detach(&s);
    str_release(&s);
    return *out ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for the messages");
}

static int render_input(struct cli *c, const struct words *w)
{
    struct err err;
    struct ingle_error error;
    struct ingle_chat chat = {.thinking = ingle_config_flag(c->config, "think"),
                              .developer_own = cli_developer_own(c)};
    struct ingle_prompt p;
    char *messages = NULL, *tools = NULL;
    const char *tools_file = ingle_config_text(c->config, "tools", 0);
    int rc = CLI_OK;
    if (!w->model)
        return cli_usage(c, "a conversation is rendered with a model's own format: give -m, or "
                            "use --jsonl");
    if (read_messages(c, &messages, &chat.n_messages, &err) ||
        (tools_file && cli_slurp_json(tools_file, &tools, &chat.n_tools, &err))) {
        rc = cli_fail_err(c, &err);
    } else {
        chat.messages = messages;
        chat.tools = tools;
        if (ingle_chat_render(w->model, &chat, &p, &error)) {
            cli_name_files(&error, ingle_config_text(c->config, "file", 0), tools_file);
            rc = cli_fail(c, &error);
        } else {
            if (ingle_config_flag(c->config, "json"))
                print_prompt(&p);
            else
                cli_put_text(stdout, p.text, p.n_text);
            ingle_prompt_release(&p);
        }
    }
    mem_free(messages);
    mem_free(tools);
    return rc;
}

/* The family is the model's unless named; a model that was not requested and is of another
 * family is not used. */
static int open_words(struct cli *c, struct words *w)
{
    struct ingle_error error;
    struct ingle_model_info info;
    if (cli_open_model(c, &w->model, &error))
        return cli_fail(c, &error);
    ingle_model_info(w->model, &info);
    w->family = ingle_config_text(c->config, "family", 0);
    if (!w->family)
        w->family = info.chat;
    if (strcmp(w->family, info.chat) == 0)
        return CLI_OK;
    if (ingle_config_is_set(c->config, "model"))
        return cli_usage(c, "option '--family': '%s' is not the format of '%s' (%s)", w->family,
                         info.path, info.chat);
    ingle_model_close(w->model);
    w->model = NULL;
    return CLI_OK;
}

int cli_render(struct cli *c)
{
    struct words w = {0};
    int rc = open_words(c, &w);
    if (!rc)
        rc = ingle_config_flag(c->config, "jsonl") ? cli_lines(c, CLI_JSON, 0, render_line, &w)
                                                   : render_input(c, &w);
    ingle_model_close(w.model);
    return rc;
}

static int parse_line(struct cli *c, void *arg, char *line, size_t n)
{
    (void)c;
    const struct words *w = arg;
    struct ingle_error error;
    char *message;
    if (ingle_parse_case(w->family, line, n, &message, &error))
        return print_error(error.text);
    puts(message);
    ingle_free(message);
    return CLI_OK;
}

static int parse_input(struct cli *c, const struct words *w)
{
    struct err err;
    struct ingle_error error;
    struct str s;
    char *text, *message;
    size_t n;
    if (cli_input(c, &text, &n, &err))
        return cli_fail_err(c, &err);
    str_init(&s);
    write_open(&s, '{');
    write_member_string(&s, "text", text, n);
    write_member_bool(&s, "tools_enabled", true);
    write_member_bool(&s, "thinking", false);
    write_member(&s, "end", "turn");
    write_member_bool(&s, "eos", true);
    write_close(&s, '}');
    mem_free(text);
    int rc = CLI_OK;
    if (ingle_parse_case(w->family, s.at, s.n, &message, &error)) {
        rc = cli_fail(c, &error);
    } else {
        puts(message);
        ingle_free(message);
    }
    str_release(&s);
    return rc;
}

int cli_parse(struct cli *c)
{
    struct words w = {0};
    int rc = open_words(c, &w);
    if (!rc)
        rc = ingle_config_flag(c->config, "jsonl") ? cli_lines(c, CLI_JSON, 0, parse_line, &w)
                                                   : parse_input(c, &w);
    ingle_model_close(w.model);
    return rc;
}
