/* SPDX-License-Identifier: Apache-2.0 */
/* Requests with media in every dialect: which parts they mean, and what errors name. */
#include "unit/unit.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "media/media.h"
#include "server/fields.h"
#include "server/anthropic/anthropic.h"
#include "server/media_url.h"
#include "server/medium.h"
#include "server/ollama/ollama.h"
#include "server/openai/openai.h"
#include "server/responses/responses.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

static struct json_object *requests;
static struct media_decoder *decoder;

static int load(void **state)
{
    (void)state;
    char *text;
    size_t n;
    struct err err;
    if (file_slurp("tests/data/vision/requests.json", 1 << 22, &text, &n, &err) != INGLE_OK)
        return 1;
    const ingle_status s = json_parse(text, n, NULL, &requests, &err);
    mem_free(text);
    return s != INGLE_OK || media_decoder_create(&decoder, &err) != INGLE_OK;
}

static int unload(void **state)
{
    (void)state;
    json_object_put(requests);
    media_decoder_free(decoder);
    return 0;
}

/* One body, read by the dialect of its path. */
struct world {
    struct chat_request r;
    struct fault f;
    struct anthropic *anthropic;
    struct responses *responses;
    struct ollama *ollama;
};

static const struct answer_options sees = {.sees = true, .hears = true};

static void read_body(struct world *w, const char *path, struct json_object *body,
                      const struct answer_options *o)
{
    struct openai_wish wish = {0};
    const struct ingle_sampling none = {0};
    *w = (struct world){0};
    request_init(&w->r, &none);
    if (strcmp(path, "/v1/chat/completions") == 0)
        openai_read_chat(&w->r, body, o, &wish, &w->f);
    else if (strcmp(path, "/v1/messages") == 0)
        anthropic_read(body, o, "req_1", NULL, &w->r, &w->anthropic, &w->f);
    else if (strcmp(path, "/v1/responses") == 0)
        responses_read(body, o, NULL, "me", NULL, &w->r, &w->responses, &w->f);
    else if (strcmp(path, "/completion") == 0)
        openai_read_prompts(&w->r, request_get(body, "prompt"), &(bool){false}, o, &w->f);
    else {
        w->ollama = ollama_create();
        w->ollama->generate = strcmp(path, "/api/generate") == 0;
        ollama_read(&w->r, body, o, w->ollama, &w->f);
    }
}

static void close_world(struct world *w)
{
    request_release(&w->r);
    anthropic_free(w->anthropic);
    responses_free(w->responses);
    ollama_free(w->ollama);
}

/* "image:SHA-256 of the pixels", "sound:samples", with the budget; false and a fault. */
static bool add_medium(struct world *w, size_t i, struct str *out)
{
    const struct request_medium *m = &w->r.medium[i];
    struct media_data d;
    struct err err;
    char hex[SHA256_HEX + 1];
    if (media_decode(decoder, m->bytes.at, m->bytes.n, m->name, &d, &err) != INGLE_OK) {
        request_fault(&w->f, FAULT_REQUEST, m->param, "%s", err.msg);
        return false;
    }
    if (m->is_sound)
        str_addf(out, "sound:%zu\n", d.sound.n);
    else {
        sha256_hex(d.picture.rgb, (size_t)d.picture.width * (size_t)d.picture.height * 3, hex,
                   SHA256_HEX);
        str_addf(out, "image:%s", hex);
        if (m->budget)
            str_addf(out, ":budget=%d", m->budget);
        str_adds(out, "\n");
    }
    media_data_release(&d);
    return true;
}

static void add_content(struct world *w, struct json_object *content, struct str *out)
{
    if (request_is_text(content) && json_object_get_string_len(content))
        str_addf(out, "text:%s\n", json_object_get_string(content));
    for (size_t i = 0; json_object_is_type(content, json_type_array) &&
                       i < json_object_array_length(content) && !w->f.kind;
         i++) {
        struct json_object *part = json_object_array_get_idx(content, i);
        struct json_object *number = request_get(part, "medium");
        if (number)
            (void)add_medium(w, (size_t)json_object_get_int(number), out);
        else
            add_content(w, request_get(part, "text"), out);
    }
}

/* Of the call whose result a message is. */
static const char *tool_of(struct json_object *messages, const char *id)
{
    for (size_t i = 0; i < json_object_array_length(messages); i++) {
        struct json_object *calls =
            request_get(json_object_array_get_idx(messages, i), "tool_calls");
        for (size_t k = 0; calls && k < json_object_array_length(calls); k++) {
            struct json_object *call = json_object_array_get_idx(calls, k);
            if (strcmp(json_object_get_string(request_get(call, "id")), id) == 0)
                return json_object_get_string(request_get(request_get(call, "function"), "name"));
        }
    }
    return "?";
}

static void add_messages(struct world *w, struct str *out)
{
    struct json_object *messages = NULL;
    assert_int_equal(json_parse(w->r.messages.at, w->r.messages.n, NULL, &messages, NULL), 0);
    for (size_t i = 0; i < json_object_array_length(messages) && !w->f.kind; i++) {
        struct json_object *m = json_object_array_get_idx(messages, i);
        if (request_text_is(request_get(m, "role"), "tool"))
            str_addf(out, "tool:%s\n",
                     tool_of(messages, json_object_get_string(request_get(m, "tool_call_id"))));
        add_content(w, request_get(m, "content"), out);
    }
    json_object_put(messages);
}

/* A prompt with markers. */
static void add_prompt(struct world *w, struct str *out)
{
    const struct request_prompt *p = w->r.prompt;
    const char *at = p->text.at, *mark;
    for (size_t i = p->first_medium; (mark = strstr(at, MEDIUM_MARKER)); i++) {
        str_addf(out, "text:%.*s\n", (int)(mark - at), at);
        if (!add_medium(w, i, out))
            return;
        at = mark + strlen(MEDIUM_MARKER);
    }
    str_addf(out, "text:%s\n", at);
}

static void want_parts(struct json_object *list, struct str *out)
{
    static const char same[] = ":budget=default";
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        const char *t = json_object_get_string(json_object_array_get_idx(list, i));
        const size_t n = strlen(t), k = sizeof same - 1;
        str_add(out, t, n > k && strcmp(t + n - k, same) == 0 ? n - k : n);
        str_adds(out, "\n");
    }
}

static void requests_mean_their_parts(void **state)
{
    (void)state;
    struct json_object *cases = request_get(requests, "cases");
    assert_int_equal(json_object_array_length(cases), 48);
    for (size_t i = 0; i < json_object_array_length(cases); i++) {
        struct json_object *c = json_object_array_get_idx(cases, i);
        const char *name = json_object_get_string(request_get(c, "name"));
        const char *path = json_object_get_string(request_get(c, "path"));
        struct json_object *said = request_get(c, "error_names");
        struct world w;
        struct str got, want;
        str_init(&got);
        str_init(&want);
        read_body(&w, path, request_get(c, "body"), &sees);
        if (!w.f.kind && w.r.chat)
            add_messages(&w, &got);
        else if (!w.f.kind)
            add_prompt(&w, &got);
        if (w.f.kind && strstr(w.f.message, "this build reads no such files")) {
            print_message("%s: skipped: %s\n", name, w.f.message);
        } else if (!said) {
            if (w.f.kind)
                fail_msg("%s: %s", name, w.f.message);
            want_parts(request_get(c, "parts"), &want);
            if (strcmp(got.at, want.at) != 0)
                fail_msg("%s: got\n%swanted\n%s", name, got.at, want.at);
        } else if (w.f.kind != FAULT_REQUEST || w.f.status != 400 || !w.f.param[0] ||
                   !strstr(w.f.message, json_object_get_string(said)))
            fail_msg("%s: '%s' (%s) does not name '%s'", name, w.f.message, w.f.param,
                     json_object_get_string(said));
        str_release(&got);
        str_release(&want);
        close_world(&w);
    }
}

/* The fault of a chat whose user sends this part. */
static void assert_fault(const char *part, const struct answer_options *o, const char *said)
{
    struct str s;
    struct json_object *body = NULL;
    struct world w;
    str_init(&s);
    str_addf(&s,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\","
             "\"content\":[{\"type\":\"text\",\"text\":\"b\"},%s]}]}",
             part);
    assert_int_equal(json_parse(s.at, s.n, NULL, &body, NULL), INGLE_OK);
    read_body(&w, "/v1/chat/completions", body, o);
    if (w.f.kind != FAULT_REQUEST || !strstr(w.f.message, said))
        fail_msg("'%s' does not say '%s'", w.f.message, said);
    assert_string_equal(w.f.param, "messages[1].content[1]");
    close_world(&w);
    json_object_put(body);
    str_release(&s);
}
#define URL(u) "{\"type\":\"image_url\",\"image_url\":{\"url\":\"" u "\"}}"

static void errors_name_the_place(void **state)
{
    (void)state;
    const struct answer_options blind = {0}, deaf = {.sees = true},
                                open = {.sees = true, .media_urls = "a.org,*.b.org"};
    static const char place[] = "message 2, part 2: ";
    assert_fault(URL("data:image/png;base64,AAAAA"), &sees, place);
    assert_fault(URL("data:image/png;base64,AAAAA"), &sees, "cut short");
    assert_fault(URL("data:image/png;base64,AA=A"), &sees, "base64: byte 3 of 4 is 0x41");
    assert_fault(URL("data:image/png;base64,AA*A"), &sees, "base64: byte 2 of 4 is 0x2a");
    assert_fault(URL("ftp://a/b"), &sees, "'ftp:'");
    assert_fault(URL("javascript:x"), &sees, "'javascript:'");
    assert_fault(URL("HTTPS://a.org/x"), &sees, "--media-urls HOSTS");
    assert_fault("{\"type\":\"image_url\"}", &sees, "no bytes");
    assert_fault("{\"type\":\"image_url\",\"image_url\":null}", &sees, "'image_url' is null");
    assert_fault("{\"type\":\"image_url\",\"image_url\":{\"url\":7}}", &sees, "{\"url\":7}");
    assert_fault("{\"type\":\"image_url\",\"image_url\":[]}", &sees, "'image_url' is []");
    assert_fault(URL("data:,x"), &blind, "reads only text (--media note)");
    assert_fault("{\"type\":\"input_audio\",\"input_audio\":{\"data\":\"UklGRg==\"}}", &deaf,
                 "reads text and pictures, no sound");
    assert_fault("{\"type\":\"video_url\",\"video_url\":{\"url\":\"data:,x\"}}", &sees,
                 "video_url");
    assert_fault("{\"type\":\"file\",\"file\":{\"file_data\":\"data:application/pdf;base64,"
                 "JVBERi0xLjc=\"}}",
                 &sees, "no PDF");
    /* addresses, where some are allowed */
    assert_fault(URL("http://a.org/x"), &open, "only https:");
    assert_fault(URL("https://c.org/x"), &open, "not among those of --media-urls");
    assert_fault(URL("https://b.org/x"), &open, "not among those");
    assert_fault(URL("https://xb.org/x"), &open, "not among those");
    assert_fault(URL("https://a.org.evil.net/x"), &open, "not among those");
    assert_fault(URL("https://a.org@evil.net/x"), &open, "user name");
    assert_fault(URL("https://u:p@a.org/x"), &open, "user name");
    assert_fault(URL("https://[::1]/x"), &open, "not among those");
    assert_fault(URL("https://127.0.0.1/x"), &open, "not among those");
    assert_fault(URL("https://"), &open, "not fetched");
    assert_fault(URL("file:///etc/passwd"), &open, "'file:'");
}

static bool is_public(const char *text)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &in.sin_addr) == 1)
        return media_url_is_public((struct sockaddr *)&in);
    assert_int_equal(inet_pton(AF_INET6, text, &in6.sin6_addr), 1);
    return media_url_is_public((struct sockaddr *)&in6);
}

static void only_the_open_internet_is_asked(void **state)
{
    (void)state;
    static const char *const closed[] = {"0.0.0.0",
                                         "10.1.2.3",
                                         "100.64.0.1",
                                         "100.127.255.255",
                                         "127.0.0.1",
                                         "127.255.255.255",
                                         "169.254.169.254",
                                         "172.16.0.1",
                                         "172.31.255.255",
                                         "192.0.0.1",
                                         "192.0.2.1",
                                         "192.88.99.1",
                                         "192.168.1.1",
                                         "198.18.0.1",
                                         "198.19.255.255",
                                         "198.51.100.1",
                                         "203.0.113.9",
                                         "224.0.0.1",
                                         "239.1.1.1",
                                         "240.0.0.1",
                                         "255.255.255.255",
                                         "::",
                                         "::1",
                                         "::ffff:10.0.0.1",
                                         "::ffff:8.8.8.8",
                                         "::127.0.0.1",
                                         "64:ff9b::a00:1",
                                         "64:ff9b:1::1",
                                         "100::1",
                                         "2001::1",
                                         "2001:db8::1",
                                         "2002:a00:1::1",
                                         "3fff::1",
                                         "fc00::1",
                                         "fd12::1",
                                         "fe80::1",
                                         "fec0::1",
                                         "ff02::1"};
    static const char *const open[] = {
        "1.1.1.1",         "8.8.8.8",      "100.63.255.255",      "100.128.0.0", "126.255.255.255",
        "172.15.0.1",      "172.32.0.1",   "192.167.0.1",         "198.17.0.1",  "223.255.255.255",
        "2606:4700::1111", "2a00:1450::1", "2001:4860:4860::8888"};
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++)
        if (is_public(closed[i]))
            fail_msg("%s is taken for public", closed[i]);
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        if (!is_public(open[i]))
            fail_msg("%s is not taken for public", open[i]);
}

/* A listed name that means an address of this machine or of its network. */
static void a_listed_host_may_not_be_inside(void **state)
{
    (void)state;
    static const char *const url[] = {"https://localhost/x", "https://127.0.0.1/x",
                                      "https://0x7f000001/x", "https://2130706433/",
                                      "https://169.254.169.254/latest/meta-data"};
    static const char hosts[] = "localhost,127.0.0.1,0x7f000001,2130706433,169.254.169.254";
    for (size_t i = 0; i < sizeof url / sizeof *url; i++) {
        struct str out;
        struct fault f = {0};
        str_init(&out);
        assert_false(media_url_fetch(url[i], hosts, NULL, "message 1, part 1", "p", &out, &f));
        if (!strstr(f.message, "message 1, part 1: the address is not fetched: its host has "))
            fail_msg("%s: %s", url[i], f.message);
        assert_int_equal(out.n, 0);
        str_release(&out);
    }
    assert_int_equal(media_url_check_hosts("a.org,*.b.org", NULL), INGLE_OK);
    assert_int_equal(media_url_check_hosts("", NULL), INGLE_ARG);
    assert_int_equal(media_url_check_hosts("*", NULL), INGLE_ARG);
    assert_int_equal(media_url_check_hosts("a.org,", NULL), INGLE_ARG);
    assert_int_equal(media_url_check_hosts("a.org,,b.org", NULL), INGLE_ARG);
    assert_int_equal(media_url_check_hosts("https://a.org", NULL), INGLE_ARG);
    assert_int_equal(media_url_check_hosts("a.org:443", NULL), INGLE_ARG);
}

/* With a model that reads text only: a note, where one was asked for or nobody can do otherwise. */
static void notes_stand_for_what_is_not_shown(void **state)
{
    (void)state;
    const struct answer_options notes = {.note_media = true};
    static const char *const body[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":[" URL("data:,x") "]}]}",
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\","
        "\"source\":{\"type\":\"base64\",\"data\":\"AAAA\"}}]}]}",
        "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":"
        "\"data:,x\"}]}]}"};
    static const char *const path[] = {"/v1/chat/completions", "/v1/messages", "/v1/responses"};
    for (size_t i = 0; i < 3; i++) {
        struct json_object *o = NULL;
        struct world w;
        assert_int_equal(json_parse(body[i], strlen(body[i]), NULL, &o, NULL), INGLE_OK);
        read_body(&w, path[i], o, &notes);
        assert_int_equal(w.f.kind, FAULT_NONE);
        assert_int_equal(w.r.n_media, 0);
        assert_non_null(strstr(w.r.messages.at, "an image or file that cannot be shown"));
        close_world(&w);
        json_object_put(o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_mean_their_parts),
        cmocka_unit_test(errors_name_the_place),
        cmocka_unit_test(only_the_open_internet_is_asked),
        cmocka_unit_test(a_listed_host_may_not_be_inside),
        cmocka_unit_test(notes_stand_for_what_is_not_shown),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
