/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_deepseek4 - what the engine decides about DeepSeek V4 files from their metadata:
 * the chat rules of the release.  Models here are a config.json, a tokenizer and no weights.
 */
#define _XOPEN_SOURCE 700
#include "unit/unit.h"

#include "ingle/ingle.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ingle_error error;

static void put_file(const char *dir, const char *name, const char *text, size_t n)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void drop_file(const char *dir, const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    (void)unlink(path);
}

/* The prompt of one question with an effort, of a model with that config.json and template
 * (or none); the caller frees it. */
static char *prompt_of(const char *config, const char *jinja, const char *effort)
{
    static const char empty[] = "\2\0\0\0\0\0\0\0{}",
                      ask[] = "[{\"role\": \"user\", \"content\": \"Hi\"}]";
    char dir[] = "/tmp/ingle-v4-XXXXXX", path[PATH_MAX], tokenizer[PATH_MAX];
    struct ingle_model *m;
    assert_non_null(mkdtemp(dir));
    assert_non_null(realpath("tests/data/nano/nano-v4-tokenizer.json", tokenizer));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_int_equal(symlink(tokenizer, path), 0);
    put_file(dir, "config.json", config, strlen(config));
    put_file(dir, "model.safetensors", empty, sizeof empty - 1);
    if (jinja)
        put_file(dir, "chat_template.jinja", jinja, strlen(jinja));
    if (ingle_model_open(&m, dir, NULL, &error))
        fail_msg("%s", error.text);
    const struct ingle_chat chat = {
        .messages = ask, .n_messages = sizeof ask - 1, .thinking = true, .effort = effort};
    struct ingle_prompt p;
    if (ingle_chat_render(m, &chat, &p, &error))
        fail_msg("%s", error.text);
    char *text = p.text;
    p.text = NULL;
    ingle_prompt_release(&p);
    ingle_model_close(m);
    drop_file(dir, "tokenizer.json");
    drop_file(dir, "config.json");
    drop_file(dir, "model.safetensors");
    drop_file(dir, "chat_template.jinja");
    assert_int_equal(rmdir(dir), 0);
    return text;
}

static void check_prompt(const char *config, const char *jinja, const char *effort, const char *has,
                         const char *has_not)
{
    char *text = prompt_of(config, jinja, effort);
    if ((has && !strstr(text, has)) || strstr(text, has_not))
        fail_msg("%s, effort %s: %s", config, effort, text);
    ingle_free(text);
}

#define CONFIG(ratios)                                                                        \
    "{\"model_type\": \"deepseek_v4\", \"num_hidden_layers\": 3, \"hidden_size\": 64,"       \
    " \"max_position_embeddings\": 4096, \"compress_ratios\": [" ratios "]}"

static void efforts_are_those_of_the_release(void **state)
{
    (void)state;
    static const char absolute[] = "Absolute maximum", beyond[] = "Beyond maximum",
                      any[] = "Reasoning Effort";
    /* Layers alone, or one draft block behind them: the first release. */
    check_prompt(CONFIG("0, 4, 128"), NULL, "max", absolute, beyond);
    check_prompt(CONFIG("0, 4, 128, 0"), NULL, "max", absolute, beyond);
    check_prompt(CONFIG("0, 4, 128, 0"), NULL, "high", NULL, any);
    /* Three stages. */
    check_prompt(CONFIG("0, 4, 128, 0, 0, 0"), NULL, "max", beyond, absolute);
    check_prompt(CONFIG("0, 4, 128, 0, 0, 0"), NULL, "high", absolute, beyond);
    check_prompt(CONFIG("0, 4, 128, 0, 0, 0"), NULL, "low", NULL, any);
    check_prompt(CONFIG("0, 4, 128, 0, 0, 0"), "{# somebody's own #}", "max", beyond, absolute);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(efforts_are_those_of_the_release)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
