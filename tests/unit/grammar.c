/* SPDX-License-Identifier: Apache-2.0 */
/* What each form of grammar takes and refuses, and that masks, tokens and bytes agree. */
#include "unit/grammar_world.h"

#include "base/str.h"
#include <stdlib.h>

enum { MOST = 12 };
#define LABEL62 "abcdefghijklmnopqrstuvwxyz-0123456789-abcdefghijklmnopqrstuvwx"

struct sample {
    enum grammar_form form;
    const char *text;
    const char *yes[MOST], *no[MOST];
};

static const struct sample samples[] = {
    {GBNF, "root ::= \"a\" | \"bc\"", {"a", "bc"}, {"", "b", "ab", "abc"}},
    {GBNF,
     "# comment\nroot ::= x+ # more\nx ::= [a-c] | \"-\" x",
     {"a", "abc", "--b"},
     {"", "-", "d"}},
    {GBNF,
     "root ::= \"a\"* \"b\"? (\"c\" | \"d\"\n \"e\")+",
     {"c", "aabcde", "dec"},
     {"ab", "d", "bb"}},
    {GBNF,
     "root ::= [^a-z\\n]{2,3}",
     {"AB", "\xC3\xA9\xE6\xBC\xA2", "\xF0\x9F\x98\x80.9"},
     {"A", "ABCD", "Ab", "A\n", "A\xC3"}},
    {GBNF,
     "root ::= \"\\x41\\u00e9\\U0001F600\\t\\\"\"",
     {"A\xC3\xA9\xF0\x9F\x98\x80\t\""},
     {"A", "a"}},
    {GBNF, "root ::= .{3}", {"abc", "\xC3\xA9\xC3\xA9\xC3\xA9", "\n\n\n"}, {"ab", "abcd"}},
    {GBNF, "root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", ")", "(()"}},
    {GBNF, "root ::= \"a\"\n  | \"b\"\n\nother ::= root", {"a", "b"}, {"c"}},
    {GBNF,
     "root ::= \"a\"{0,100000}",
     {"", "a", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
     {"b", "ab"}},
    {GBNF,
     "root ::= (\"ab\"{2} | \"a\"){1,3}",
     {"a", "aaa", "abab", "ababa", "aababa"},
     {"", "ab", "aaaa"}},
    {GBNF,
     "root ::= (\"a\"?){2,20} \"b\"",
     {"b", "ab", "aaaaaaaaaaaaaaaaaaaab"},
     {"a", "aaaaaaaaaaaaaaaaaaaaab"}},
    {GBNF, "root ::= \"a\"{3,}", {"aaa", "aaaaaaaaaaaa"}, {"aa", ""}},
    {REGEX, "[a-z]+@\\w+\\.com", {"a@b.com", "abc@x_9.com"}, {"@b.com", "a@b.comm", "A@b.com"}},
    {REGEX, "^(foo|ba[rz])?$", {"", "foo", "bar", "baz"}, {"ba", "fo", "foobar"}},
    {REGEX, "\\d{3}-\\d{2,4}", {"123-45", "123-4567"}, {"123-4", "12-45", "123-45678"}},
    {REGEX,
     "(?:ab\\x01||)C{3,}",
     {"CCC", "ab\x01"
             "CCCC"},
     {"CC", "ab"}},
    {GBNF,
     "root ::= (x | x)? x+ \"c\"\nx ::= \"a\" | y?\ny ::= \"b\"",
     {"c", "aac", "abc"},
     {"a", "cb"}},
    {REGEX,
     "a.c",
     {"abc", "a\xC3\xA9"
             "c"},
     {"ac", "a\nc", "abbc"}},
    {REGEX, "(?:a|b){2}\\s\\S\\D[^\\d\\s]*?", {"ab x-", "ba\t1y", "aa zzq"}, {"a x", "ab xx1"}},
    {REGEX,
     "\\u00e9\\x41\\u{1F600}",
     {"\xC3\xA9"
      "A\xF0\x9F\x98\x80"},
     {"\xC3\xA9"}},
    {REGEX, "[\\]\\-a]+[-x]", {"]-a-", "ax"}, {"x", "b-"}},
    {JSON,
     "json",
     {"{}", "{\"a\":1}",
      "{\"a\": [1, -2.5e3, \"x\\n\\u00e9\\ud83d\\ude00\", null, true, {}], \"b\": {\"c\": false}}",
      "{\n  \"a\": 1\n}"},
     {"", "[]", "1", "{", "{\"a\"}", "{\"a\":01}", "{\"a\":1,}", "{a:1}", "{\"a\":\"\n\"}",
      "{\"a\":\"\\x\"}", "{\"a\":\"\\ud83d\"}"}},
    {SCHEMA, "{}", {"1", "\"a\"", "[1, 2]", "{\"a\": {}}", "null"}, {"", "a", "[1"}},
    {SCHEMA, "true", {"true"}, {"x"}},
    {SCHEMA, "{\"type\": \"integer\"}", {"0", "-1", "1234"}, {"01", "1.5", "-", "\"1\""}},
    {SCHEMA, "{\"type\": [\"string\", \"null\"]}", {"null", "\"\"", "\"a\\\"b\""}, {"1", "\""}},
    {SCHEMA, "{\"type\": \"boolean\"}", {"true", "false"}, {"t", "null"}},
    {SCHEMA,
     "{\"enum\": [\"a\", 1, null, [1, {\"x\": \"y\"}], 2.50]}",
     {"\"a\"", "1", "null", "[1, {\"x\":\"y\"}]", "2.50"},
     {"\"b\"", "2", "[1]"}},
    {SCHEMA,
     "{\"enum\":[1,2,3,\"x\",null],\"minimum\":2,\"type\":[\"integer\",\"null\"]}",
     {"2", "3", "null"},
     {"1", "\"x\""}},
    {SCHEMA,
     "{\"allOf\":[{\"multipleOf\":4},{\"type\":\"integer\",\"multipleOf\":6}]}",
     {"0", "12", "-24", "36"},
     {"4", "6", "8", "18"}},
    {SCHEMA,
     "{\"allOf\":[{\"enum\":[1,2,3.5]},{\"exclusiveMinimum\":1,\"maximum\":3}]}",
     {"2"},
     {"1", "3.5"}},
    {SCHEMA,
     "{\"enum\":[\"a\",\"b\",\"abc\",\"\u00e9\"],\"pattern\":\"[a\u00e9]\",\"maxLength\":1}",
     {"\"a\"", "\"\xC3\xA9\""},
     {"\"b\"", "\"abc\""}},
    {SCHEMA,
     "{\"enum\":[\"2024-02-28\",\"x\"],\"format\":\"date\"}",
     {"\"2024-02-28\""},
     {"\"x\""}},
    {SCHEMA,
     "{\"enum\":[[1],[1,2],[\"a\",2]],\"minItems\":2,\"items\":{\"anyOf\":[{\"type\":\"integer\"},{"
     "\"$ref\":\"#/$defs/n\"}]},\"$defs\":{\"n\":{\"const\":null}}}",
     {"[1,2]"},
     {"[1]", "[\"a\",2]"}},
    {SCHEMA,
     "{\"enum\":[{},{\"a\":1},{\"a\":\"x\"},{\"a\":1,\"b\":2}],\"required\":[\"a\"],\"properties\":"
     "{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":false}",
     {"{\"a\":1}"},
     {"{}", "{\"a\":\"x\"}", "{\"a\":1,\"b\":2}"}},
    {SCHEMA,
     "{\"anyOf\":[{\"const\":3,\"type\":\"string\"},{\"const\":4,\"enum\":[5]},{\"const\":null},{"
     "\"const\":1.0,\"type\":\"integer\"}]}",
     {"null", "1.0"},
     {"3", "4", "5"}},
    {SCHEMA, "{\"const\": {\"a\": \"q\\\"\"}}", {"{\"a\":\"q\\\"\"}"}, {"{}", "{\"a\":\"q\"}"}},
    {SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}"
     ",\"c\":{}},\"required\":[\"b\"]}",
     {"{\"b\":\"\"}", "{\"a\":1,\"b\":\"x\"}", "{ \"a\": 1, \"b\": \"x\", \"c\": [] }",
      "{\"b\":\"\",\"c\":1}"},
     {"{}", "{\"a\":1}", "{\"b\":\"\",\"a\":1}", "{\"b\":\"\",\"d\":1}", "{\"a\":1\"b\":\"\"}",
      "{,\"b\":\"\"}", "{\"b\":\"\",}"}},
    {SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"},\"ab\":{\"type\":\"null\"}},"
     "\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{}", "{\"a\":null}", "{\"b\":1}", "{\"a\":null,\"abc\":2,\"\":3}", "{\"ac\":2}",
      "{\"ab\":null,\"x\":4,\"y\":5}"},
     {"{\"a\":1}", "{\"ab\":1}", "{\"x\":null}", "{\"x\":1,\"a\":2}"}},
    {SCHEMA,
     "{\"type\":\"object\",\"required\":[\"x\",\"y\"]}",
     {"{\"x\":1,\"y\":2}", "{\"x\":1,\"y\":2,\"z\":3}"},
     {"{}", "{\"x\":1}"}},
    {SCHEMA,
     "{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}",
     {"{}"},
     {"{\"a\":1}"}},
    {SCHEMA,
     "{\"type\":\"integer\",\"multipleOf\":7}",
     {"0", "7", "-14", "49", "700", "1001"},
     {"1", "-0", "07", "8", "50", "7.0"}},
    {SCHEMA,
     "{\"type\":\"integer\",\"multipleOf\":2.5,\"minimum\":5,\"exclusiveMaximum\":100}",
     {"5", "10", "95"},
     {"0", "6", "100", "-5"}},
    {SCHEMA,
     "{\"multipleOf\":0.25,\"minimum\":-1.5,\"maximum\":12}",
     {"0", "0.25", "0.5", "0.50", "-1.5", "12", "12.00", "-1.25", "7.75"},
     {"-1.75", "12.25", "0.3", "0.", "-0", "0.250"}},
    {SCHEMA,
     "{\"multipleOf\":0.01,\"exclusiveMinimum\":0.005,\"type\":\"number\"}",
     {"0.01", "19.99", "5", "5.5", "100.10"},
     {"0", "0.005", "0.001", "-1", "5.555"}},
    {SCHEMA,
     "{\"multipleOf\":1000000,\"exclusiveMaximum\":0}",
     {"-1000000", "-25000000"},
     {"0", "1000000", "-100000", "-1000001"}},
    {SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
     {"[1]", "[1, 2]", "[1,2,3]"},
     {"[]", "[1,2,3,4]", "[1,]", "[\"a\"]"}},
    {SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}",
     {"[]", "[ 1 ]", "[1,2,3,4,5,6,7]"},
     {"[,]", "[1"}},
    {SCHEMA, "{\"type\":\"array\",\"maxItems\":0}", {"[]"}, {"[1]"}},
    {SCHEMA,
     "{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":false}",
     {"[1,\"a\"]"},
     {"[1]", "[1,\"a\",2]", "[\"a\",1]"}},
    {SCHEMA,
     "{\"anyOf\":[{\"type\":\"array\",\"items\":false,\"minItems\":1},{\"type\":\"null\"}]}",
     {"null"},
     {"[]", "[1]"}},
    {SCHEMA,
     "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"}],\"items\":false,\"minItems\":1}",
     {"[null]"},
     {"[]"}},
    {SCHEMA,
     "{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":\"null\"},\"minItems\":2}",
     {"[1,null]", "[1,null,null]"},
     {"[1]", "[null]"}},
    {SCHEMA,
     "{\"type\":\"string\",\"minLength\":2,\"maxLength\":4}",
     {"\"ab\"", "\"abcd\"", "\"\xC3\xA9\xE6\xBC\xA2\"", "\"\\n\\u0041x\""},
     {"\"a\"", "\"abcde\"", "\"\""}},
    {SCHEMA,
     "{\"type\":\"string\",\"maxLength\":40}",
     {"\"\"", "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""},
     {"\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""}},
    {SCHEMA,
     "{\"type\":\"string\",\"minLength\":30}",
     {"\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""},
     {"\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""}},
    {SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"^[a-z]{2}-\\\\d+$\"}",
     {"\"ab-1\"", "\"xy-123\""},
     {"\"ab-\"", "\"ab-1x\"", "\"a-1\""}},
    {SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"b|^c\"}",
     {"\"abc\"", "\"b\"", "\"cx\""},
     {"\"a\"", "\"ac\""}},
    {SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"^[\\\\\\\\\\\"\\\\n]$\"}",
     {"\"\\\\\"", "\"\\\"\"", "\"\\n\""},
     {"\"a\"", "\"\"\""}},
    {SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"^[a-c]+$\",\"maxLength\":3}",
     {"\"a\"", "\"abc\""},
     {"\"\"", "\"abca\""}},
    {SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"^a{2,3}$\",\"maxLength\":5}",
     {"\"aa\"", "\"aaa\""},
     {"\"a\""}},
    {SCHEMA,
     "{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-28\"", "\"1999-12-31\""},
     {"\"2024-02-31\"", "\"2024-13-01\"", "\"2024-1-1\""}},
    {SCHEMA,
     "{\"type\":\"string\",\"format\":\"date-time\"}",
     {"\"2024-02-28T23:59:59Z\"", "\"2024-02-28T00:00:00.5+01:00\""},
     {"\"2024-02-28\"", "\"2024-02-28T24:00:00Z\""}},
    {SCHEMA,
     "{\"type\":\"string\",\"format\":\"duration\"}",
     {"\"P1Y2M3DT4H5M6S\"", "\"PT20M\"", "\"P4W\"", "\"P3DT5S\""},
     {"\"P\"", "\"PT\"", "\"1D\"", "\"P1DT\"", "\"P1Y3D\"", "\"P1W2D\""}},
    {SCHEMA,
     "{\"type\":\"string\",\"format\":\"uuid\"}",
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"123e4567\""}},
    {SCHEMA,
     "{\"type\":\"string\",\"format\":\"hostname\"}",
     {"\"a-b.example.com\"", "\"" LABEL62 "." LABEL62 "." LABEL62 "." LABEL62 "\""},
     {"\"-a\"", "\"a..b\"", "\"" LABEL62 "a." LABEL62 "\""}},
    {SCHEMA,
     "{\"type\":\"string\",\"format\":\"email\"}",
     {"\"a.b+c@example.com\""},
     {"\"a@b\"", "\".a@b.c\"", "\"" LABEL62 "@b.c\""}},
    {SCHEMA, "{\"type\":\"string\",\"format\":\"unheard-of\"}", {"\"x\""}, {"1"}},
    {SCHEMA,
     "{\"type\":\"integer\",\"minimum\":-12,\"maximum\":105}",
     {"-12", "-9", "0", "9", "99", "100", "105"},
     {"-13", "106", "-20", "200", "1000", "-0"}},
    {SCHEMA, "{\"type\":\"integer\",\"exclusiveMinimum\":0}", {"1", "10", "99999"}, {"0", "-1"}},
    {SCHEMA,
     "{\"type\":\"integer\",\"minimum\":1.5,\"exclusiveMaximum\":4}",
     {"2", "3"},
     {"1", "4"}},
    {SCHEMA,
     "{\"type\":\"integer\",\"maximum\":-5}",
     {"-5", "-6", "-10", "-123"},
     {"-4", "0", "5"}},
    {SCHEMA, "{\"type\":\"integer\",\"minimum\":5,\"maximum\":5}", {"5"}, {"4", "6", "55"}},
    {SCHEMA,
     "{\"type\":\"integer\",\"minimum\":1000,\"maximum\":2999}",
     {"1000", "2999", "1999", "2000"},
     {"999", "3000", "10000"}},
    {SCHEMA,
     "{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
     {"0", "1", "0.5", "0.0", "1.0", "1.00"},
     {"-0.1", "1.1", "1.01", "2", "1e5", "0."}},
    {SCHEMA,
     "{\"type\":\"number\",\"exclusiveMinimum\":-1.25,\"exclusiveMaximum\":3.5}",
     {"-1.2", "-1.249", "-1", "-0.5", "0", "3", "3.49", "3.4"},
     {"-1.25", "-1.3", "-2", "3.5", "3.50", "3.6", "4"}},
    {SCHEMA,
     "{\"type\":\"number\",\"minimum\":2.5}",
     {"2.5", "2.50", "2.51", "2.6", "3", "10.25"},
     {"2.4", "2", "0", "2.49", "-3"}},
    {SCHEMA,
     "{\"type\":\"number\",\"minimum\":1.25,\"maximum\":1.5}",
     {"1.25", "1.3", "1.5", "1.49", "1.250"},
     {"1.24", "1.51", "1.2", "1", "1.6"}},
    {SCHEMA, "{\"type\":\"number\"}", {"0", "-1.5", "1e5", "2.5E-3"}, {"1.", ".5", "1e"}},
    {SCHEMA,
     "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},"
     "\"required\":[\"a\"]}]}",
     {"7", "{\"a\":1}"},
     {"{}", "\"a\""}},
    {SCHEMA, "{\"oneOf\":[{\"const\":1},{\"const\":2}]}", {"1", "2"}, {"3"}},
    {SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"integer\"}},\"required\":[\"k\"],"
     "\"anyOf\":[{\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]},{\"properties\":{"
     "\"b\":{\"const\":2}}}]}",
     {"{\"k\":1,\"a\":1}", "{\"k\":1,\"b\":2}", "{\"k\":1}"},
     {"{\"a\":1}", "{\"k\":1,\"a\":2}"}},
    {SCHEMA,
     "{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":["
     "\"a\"]},{\"properties\":{\"a\":{\"minimum\":3},\"b\":{\"type\":\"null\"}}}]}",
     {"{\"a\":3}", "{\"a\":30,\"b\":null}"},
     {"{\"a\":2}", "{}"}},
    {SCHEMA,
     "{\"$ref\":\"#/$defs/"
     "node\",\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
     "\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
     "node\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}}}",
     {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"},
     {"{\"v\":1}", "{\"v\":1,\"next\":{}}"}},
    {SCHEMA,
     "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}",
     {"[]", "[[],[[]]]"},
     {"[1]", "[[]"}},
    {REGEX, "(?!foo)[a-z]{3,5}", {"bar", "fob", "xfoo"}, {"foo", "fooba", "ab"}},
    {REGEX,
     "(?=.*[A-Z])(?=.*\\d)(?!.*--).{4,}",
     {"aB3-", "1Zzz\xC3\xA9"},
     {"ab34", "ABCD", "B3--x", "B3a"}},
    {REGEX, "a(?=..$)[b-d]+(?:e|(?!f).)", {"abe", "acd"}, {"abcd", "abf", "ae"}},
    {REGEX, "(?=a$|b)(?:ab|bc|a)", {"a", "bc"}, {"ab", "b"}},
    {SCHEMA,
     "{\"pattern\":\"^(?!^[-+.]*$)[+-]?0*\\\\d*\\\\.?\\\\d*$\"}",
     {"\"1\"", "\"-0.5\"", "\"+12.\"", "\".5\""},
     {"\"\"", "\"-\"", "\"+.\"", "\".\"", "\"1a\""}},
    {SCHEMA,
     "{\"pattern\":\"^(?!^[-+.]*$)[+-]?0*(?:\\\\d{0,3}$|(?=[\\\\d.]{1,5}0*$)\\\\d{0,3}\\\\.\\\\d{0,"
     "2}0*$)\"}",
     {"\"123\"", "\"12.34\"", "\"-0001.5000\"", "\".5\""},
     {"\"1234\"", "\"1.234\"", "\"+\"", "\"1.2x\""}},
    {SCHEMA, "{\"pattern\":\"(?!a)[ab]c\"}", {"\"bc\"", "\"xacbc!\""}, {"\"ac\"", "\"b\""}},
    {SCHEMA,
     "{\"pattern\":\"^(?!.*\\\\n).*\\\"$\"}",
     {"\"a\\\"\"", "\"\\t\\\"\""},
     {"\"a\"", "\"\\n\\\"\""}},
    {SCHEMA,
     "{\"pattern\":\"^(ab)+$\",\"maxLength\":5}",
     {"\"ab\"", "\"abab\""},
     {"\"ababab\"", "\"\"", "\"aba\""}},
    {SCHEMA,
     "{\"pattern\":\"b\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"b\xC3\xA9\xE6\xBC\xA2\""},
     {"\"b\"", "\"aaa\"", "\"abcd\""}},
    {SCHEMA,
     "{\"pattern\":\"^2\",\"format\":\"date\"}",
     {"\"2024-02-28\""},
     {"\"1999-12-31\"", "\"2\""}},
    {SCHEMA,
     "{\"pattern\":\"^\\\\d\\\\d:\\\\d\\\\d$\",\"format\":\"time\"}",
     {"\"12:30\""},
     {"\"12:30:00Z\""}},
    {SCHEMA, "{\"anyOf\":[{\"not\":{}},{\"const\":1},{\"not\":true}]}", {"1"}, {"2", "{}"}},
    {SCHEMA,
     "{\"properties\":{\"a\":{\"not\":{}},\"b\":{\"type\":\"null\"}}}",
     {"{}", "{\"b\":null}"},
     {"{\"a\":1}", "{\"a\":{}}"}},
    {SCHEMA,
     "{\"type\":[\"string\",\"null\",\"integer\"],\"not\":{\"type\":[\"null\",\"number\"]}}",
     {"\"x\""},
     {"null", "1"}},
    {SCHEMA, "{\"enum\":[1,2,\"a\"],\"not\":{\"enum\":[2,3]}}", {"1", "\"a\""}, {"2", "3"}},
    {SCHEMA,
     "{\"items\":{\"enum\":[\"a\",\"b\",\"ab\",\"a\"]},\"uniqueItems\":true}",
     {"[]", "[\"a\"]", "[\"b\",\"a\"]", "[\"ab\", \"b\", \"a\"]"},
     {"[\"a\",\"a\"]", "[\"a\",\"b\",\"ab\",\"b\"]", "[,]"}},
    {SCHEMA,
     "{\"items\":{\"$ref\":\"#/$defs/"
     "e\"},\"uniqueItems\":true,\"minItems\":2,\"maxItems\":3,\"$defs\":{\"e\":{\"enum\":[1,2,3,4]}"
     "}}",
     {"[1,2]", "[4,1,3]"},
     {"[]", "[1]", "[1,1]", "[1,2,3,4]"}},
    {SCHEMA,
     "{\"items\":{\"type\":\"boolean\"},\"uniqueItems\":true}",
     {"[true]", "[false,true]"},
     {"[true,true]", "[true,false,true]", "[null]"}},
    {SCHEMA,
     "{\"items\":{\"type\":\"string\"},\"maxItems\":1,\"uniqueItems\":true}",
     {"[]", "[\"x\"]"},
     {"[\"x\",\"y\"]"}},
    {SCHEMA,
     "{\"propertyNames\":{\"enum\":[\"a\",\"b\"]},\"additionalProperties\":{\"type\":\"integer\"},"
     "\"required\":[\"b\"]}",
     {"{\"b\":1}", "{\"a\":2,\"b\":1}"},
     {"{}", "{\"a\":1}", "{\"b\":1,\"c\":1}", "{\"b\":null}"}},
    {SCHEMA,
     "{\"propertyNames\":{\"pattern\":\"^[a-c]+$\",\"maxLength\":2}}",
     {"{}", "{\"ab\":1,\"c\":{}}"},
     {"{\"d\":1}", "{\"abc\":1}", "{\"\":1}"}},
    {SCHEMA,
     "{\"propertyNames\":{\"type\":\"string\"},\"additionalProperties\":{\"type\":\"null\"}}",
     {"{\"x y\":null}"},
     {"{\"x\":1}"}},
    {SCHEMA,
     "{\"patternProperties\":{\"^s_\":{\"type\":\"string\"},\"^n\":{\"type\":\"integer\"}},"
     "\"additionalProperties\":false}",
     {"{}", "{\"s_a\":\"x\",\"n1\":2}", "{\"n\":0}"},
     {"{\"s_a\":1}", "{\"n\":\"x\"}", "{\"x\":1}", "{\"s\":\"x\"}"}},
    {SCHEMA,
     "{\"properties\":{\"na\":{\"minimum\":5},\"b\":{\"type\":\"null\"}},\"patternProperties\":{\"^"
     "n\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":\"boolean\"}}",
     {"{\"na\":5}", "{\"b\":null,\"nb\":1,\"c\":true}"},
     {"{\"na\":4}", "{\"na\":5.5}", "{\"nb\":true}", "{\"b\":true}", "{\"c\":1}"}},
    {SCHEMA,
     "{\"properties\":{\"a\":{\"type\":\"null\"}},\"unevaluatedProperties\":false}",
     {"{}", "{\"a\":null}"},
     {"{\"b\":1}"}},
    {SCHEMA,
     "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"null\"}}},{\"properties\":{\"b\":{\"type\":"
     "\"null\"}}}],\"unevaluatedProperties\":false}",
     {"{\"a\":null,\"b\":null}"},
     {"{\"c\":1}"}},
    {SCHEMA,
     "{\"prefixItems\":[{\"type\":\"null\"}],\"unevaluatedItems\":false}",
     {"[null]"},
     {"[null,1]"}},
    {SCHEMA,
     "{\"type\":\"integer\",\"minimum\":-9223372036854775808,\"maximum\":9223372036854775807}",
     {"0", "-9223372036854775808", "9223372036854775807"},
     {"9223372036854775808", "-9223372036854775809"}},
    {SCHEMA,
     "{\"type\":\"integer\",\"exclusiveMaximum\":1e20,\"minimum\":99999999999999999999}",
     {"99999999999999999999"},
     {"100000000000000000000", "1"}},
    {SCHEMA,
     "{\"type\":\"number\",\"minimum\":-1.7976931348623157e308,\"maximum\":2.5e-3}",
     {"0", "-12", "0.0025", "0.001"},
     {"0.0026", "1"}},
    {SCHEMA, "{\"type\":\"integer\",\"nullable\":true}", {"1", "null"}, {"\"\""}},
    {SCHEMA,
     "{\"anyOf\":[{\"$ref\":\"#/$defs/"
     "loop\"},{\"const\":1}],\"$defs\":{\"loop\":{\"type\":\"object\",\"properties\":{\"x\":{\"$"
     "ref\":\"#/$defs/loop\"}},\"required\":[\"x\"]}}}",
     {"1"},
     {"{", "{\"x\":1}"}},
};

static void test_samples(void **state)
{
    struct world *w = *state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const struct sample *s = &samples[i];
        struct grammar *g = world_grammar(w, s->form, s->text);
        for (size_t k = 0; k < MOST && s->yes[k]; k++)
            if (!world_fits(w, g, s->yes[k], strlen(s->yes[k]), true))
                fail_msg("%s: '%s' does not fit", s->text, s->yes[k]);
        for (size_t k = 0; k < MOST && s->no[k]; k++)
            if (world_fits(w, g, s->no[k], strlen(s->no[k]), true))
                fail_msg("%s: '%s' fits", s->text, s->no[k]);
        grammar_free(g);
    }
}

/* A random token that the text at s begins with: the single byte, or a word. */
static int32_t cut(const struct world *w, const char *s, size_t n, size_t *n_token)
{
    for (int tries = 0; tries < 20; tries++) {
        const size_t i = (size_t)rand() % (sizeof world_word / sizeof *world_word);
        *n_token = strlen(world_word[i]);
        if (*n_token <= n && memcmp(s, world_word[i], *n_token) == 0)
            return (int32_t)(256 + i);
    }
    char spelling[8];
    *n_token = 1;
    spelling[utf8_encode(text_byte_char((unsigned char)*s), spelling)] = 0;
    return text_find(w->t, spelling, strlen(spelling));
}

/* However a text is cut into tokens, it fits or not. */
static void test_every_cut(void **state)
{
    struct world *w = *state;
    struct err err = {0};
    srand(1);
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const struct sample *s = &samples[i];
        struct grammar *g = world_grammar(w, s->form, s->text);
        for (size_t k = 0; k < 2 * MOST; k++) {
            const char *text = k < MOST ? s->yes[k] : s->no[k - MOST];
            for (int again = 0; text && again < 5; again++) {
                struct grammar_matcher *m = world_matcher(w, g);
                const size_t n = strlen(text);
                ingle_status st = INGLE_OK;
                for (size_t at = 0, len; at < n && !st; at += len) {
                    const int32_t token = cut(w, text + at, n - at, &len);
                    bool allows = false;
                    assert_int_equal(grammar_matcher_allows(m, token, &allows, &err), INGLE_OK);
                    st = grammar_matcher_accept(m, token, &err);
                    assert_int_equal(st, allows ? INGLE_OK : INGLE_ARG);
                }
                if (!st)
                    st = grammar_matcher_accept(m, w->end, &err);
                if ((st == INGLE_OK) != (k < MOST))
                    fail_msg("%s: '%s' cut at random %s", s->text, text,
                             st ? "does not fit" : "fits");
                grammar_matcher_free(m);
            }
        }
        grammar_free(g);
    }
}

static const struct {
    enum grammar_form form;
    ingle_status status;
    const char *text, *says;
} refused[] = {
    {GBNF, INGLE_ARG, "", "root"},
    {GBNF, INGLE_ARG, "other ::= \"a\"", "root"},
    {GBNF, INGLE_ARG, "root ::= missing", "'missing' is not defined"},
    {GBNF, INGLE_ARG, "root ::= root \"a\" | \"b\"", "'root'"},
    {GBNF, INGLE_ARG, "root ::= x\nx ::= \"\"? y\ny ::= x \"c\"", "left recursion"},
    {GBNF, INGLE_ARG, "root ::= root", "left recursion"},
    {GBNF, INGLE_ARG, "root ::= \"a\" root", "no finite text"},
    {GBNF, INGLE_ARG, "root ::= []", "no finite text"},
    {GBNF, INGLE_ARG, "root ::= \"a", "closing quote"},
    {GBNF, INGLE_ARG, "root ::= [a", "closing ]"},
    {GBNF, INGLE_ARG, "root ::= (\"a\"", "closing )"},
    {GBNF, INGLE_ARG, "root ::= \"a\"{2", "closing }"},
    {GBNF, INGLE_ARG, "root ::= \"a\"{3,2}", "below"},
    {GBNF, INGLE_ARG, "root ::= \"a\"{}", "no number"},
    {GBNF, INGLE_LIMIT, "root ::= \"a\"{99999999999}", "limit"},
    {GBNF, INGLE_LIMIT, "root ::= (\"a\"?){0,100000}", "limit"},
    {GBNF, INGLE_ARG, "root ::= \"\\q\"", "escape"},
    {GBNF, INGLE_ARG, "root ::= \"\\uD800\"", "Unicode"},
    {GBNF, INGLE_ARG, "root ::= [z-a]", "range"},
    {GBNF, INGLE_ARG, "root ::= \"a\"\nroot ::= \"b\"", "twice"},
    {GBNF, INGLE_ARG, "root = \"a\"", "::="},
    {GBNF, INGLE_ARG, "root ::= \"a\" )", "unexpected"},
    {GBNF, INGLE_ARG, "root ::= <nothing>", "no token"},
    {GBNF, INGLE_ARG, "root ::= <[99999]>", "no token"},
    {GBNF, INGLE_ARG, "root ::= \"\xFF\"", "UTF-8"},
    {REGEX, INGLE_ARG, "a(?=b)", "no finite"},
    {REGEX, INGLE_UNSUP, "(a(?=b))b", "look-around inside"},
    {REGEX, INGLE_UNSUP, "a(?<=b)", "look-behind"},
    {REGEX, INGLE_ARG, "(?=a", "closing )"},
    {REGEX, INGLE_LIMIT, "(?=a)a(?=a)a(?=a)a(?=a)a(?=a)a(?=a)a(?=a)a(?=a)a(?=a)a", "more than 8"},
    {REGEX, INGLE_UNSUP, "(a)\\1", "back-reference"},
    {REGEX, INGLE_UNSUP, "a\\b", "word boundar"},
    {REGEX, INGLE_UNSUP, "a(^b)", "anchors"},
    {REGEX, INGLE_UNSUP, "\\p{L}", "\\p"},
    {REGEX, INGLE_UNSUP, "a++", "possessive"},
    {REGEX, INGLE_ARG, "(a", "closing )"},
    {REGEX, INGLE_ARG, "a)", "unexpected )"},
    {REGEX, INGLE_ARG, "*", "nothing to repeat"},
    {REGEX, INGLE_ARG, "a{3,1}", "repetition"},
    {REGEX, INGLE_ARG, "[b-a]", "range"},
    {REGEX, INGLE_ARG, "\\", "escape"},
    {SCHEMA, INGLE_FORMAT, "{", ""},
    {SCHEMA, INGLE_ARG, "[]", "no object"},
    {SCHEMA, INGLE_ARG, "{\"type\":\"strin\"}", "'strin'"},
    {SCHEMA, INGLE_ARG, "{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", "minItems"},
    {SCHEMA, INGLE_ARG, "{\"type\":\"array\",\"minItems\":-1}", "minItems"},
    {SCHEMA, INGLE_LIMIT, "{\"type\":\"array\",\"minItems\":1e9}", "minItems"},
    {SCHEMA, INGLE_LIMIT, "{\"type\":\"string\",\"minLength\":4e36}", "minLength"},
    {SCHEMA, INGLE_UNSUP, "{\"properties\":{\"a\":{\"not\":{\"minimum\":1}}}}",
     "'#/properties/a': 'not'"},
    {SCHEMA, INGLE_ARG, "{\"not\":{}}", "no finite"},
    {SCHEMA, INGLE_UNSUP, "{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems"},
    {SCHEMA, INGLE_UNSUP, "{\"propertyNames\":{\"anyOf\":[true]}}", "propertyNames"},
    {SCHEMA, INGLE_UNSUP, "{\"if\":true}", "'if'"},
    {SCHEMA, INGLE_UNSUP, "{\"type\":\"string\",\"pattern\":\"[ab].*c\",\"minLength\":20000}",
     "states"},
    {SCHEMA, INGLE_UNSUP, "{\"minimum\":1e41}", "'minimum'"},
    {SCHEMA, INGLE_UNSUP, "{\"multipleOf\":99999989}", "multipleOf"},
    {SCHEMA, INGLE_UNSUP, "{\"multipleOf\":0.5,\"minimum\":123456789012345678}", "multipleOf"},
    {SCHEMA, INGLE_ARG, "{\"multipleOf\":0}", "multipleOf"},
    {SCHEMA, INGLE_UNSUP, "{\"allOf\":[{\"multipleOf\":4},{\"multipleOf\":0}]}",
     "two different 'multipleOf'"},
    {SCHEMA, INGLE_UNSUP, "{\"allOf\":[{\"multipleOf\":0.5},{\"multipleOf\":3}]}",
     "two different 'multipleOf'"},
    {SCHEMA, INGLE_UNSUP,
     "{\"allOf\":[{\"multipleOf\":9223372036854775807},{\"multipleOf\":9223372036854775806}]}",
     "two different 'multipleOf'"},
    {SCHEMA, INGLE_ARG, "{\"allOf\":[{\"enum\":[1]},{\"enum\":[2]}]}", "enum"},
    {SCHEMA, INGLE_ARG, "{\"multipleOf\":-2}", "multipleOf"},
    {SCHEMA, INGLE_ARG, "{\"multipleOf\":\"2\"}", "multipleOf"},
    {SCHEMA, INGLE_UNSUP, "{\"$ref\":\"http://x/y\"}", "$ref"},
    {SCHEMA, INGLE_ARG, "{\"$ref\":\"#/$defs/no\"}", "no such schema"},
    {SCHEMA, INGLE_ARG, "{\"$ref\":\"#\"}", "left recursion"},
    {SCHEMA, INGLE_ARG,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
     "no finite"},
    {SCHEMA, INGLE_ARG, "{\"enum\":[]}", "enum"},
    {SCHEMA, INGLE_UNSUP, "{\"type\":\"string\",\"pattern\":\"(?<!a)b\"}", "#/pattern"},
    {SCHEMA, INGLE_ARG,
     "{\"type\":\"string\",\"pattern\":\"^(ab)+$\",\"minLength\":3,\"maxLength\":3}", "no finite"},
    {SCHEMA, INGLE_ARG, "{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "no finite"},
    {SCHEMA, INGLE_ARG, "{\"required\":[\"a\"],\"properties\":{},\"additionalProperties\":false}",
     "required"},
    {SCHEMA, INGLE_UNSUP,
     "{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":false},{\"properties\":{"
     "\"b\":{}}}]}",
     "additionalProperties"},
    {SCHEMA, INGLE_LIMIT, "{\"allOf\":[{\"$ref\":\"#\"},{\"type\":\"object\"}]}", "limit"},
};

static void test_refused(void **state)
{
    const struct world *w = *state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct grammar *g = NULL;
        struct err err = {0};
        const ingle_status st = world_try(w, &g, refused[i].form, refused[i].text, &err);
        if (!st)
            fail_msg("'%s' is taken", refused[i].text);
        if (st != refused[i].status || !strstr(err.msg, refused[i].says))
            fail_msg("'%s': %d %s", refused[i].text, (int)st, err.msg);
        assert_null(g);
    }
}

static void test_special_tokens(void **state)
{
    struct world *w = *state;
    struct grammar *g = world_grammar(w, GBNF, "root ::= \"a\" <mark> \"b\" | <[3]>");
    struct grammar_matcher *m = world_matcher(w, g);
    struct err err = {0};
    const uint64_t *bit;
    size_t taken;
    world_check_mask(w, m, "special");
    assert_int_equal(grammar_matcher_accept(m, w->special, &err), INGLE_ARG);
    assert_int_equal(grammar_matcher_accept_bytes(m, "a", 1, &taken, &err), INGLE_OK);
    assert_int_equal(grammar_matcher_mask(m, &bit, &err), INGLE_OK);
    for (size_t i = 0; i < w->n; i++)
        assert_int_equal(bit[i / 64] >> i % 64 & 1, i == (size_t)w->special);
    assert_int_equal(grammar_matcher_accept(m, w->special, &err), INGLE_OK);
    assert_false(grammar_matcher_may_end(m));
    assert_int_equal(grammar_matcher_accept(m, w->end, &err), INGLE_ARG);
    assert_int_equal(grammar_matcher_accept_bytes(m, "b", 1, &taken, &err), INGLE_OK);
    assert_int_equal(grammar_matcher_mask(m, &bit, &err), INGLE_OK);
    for (size_t i = 0; i < w->n; i++) /* nothing but the end */
        assert_int_equal(bit[i / 64] >> i % 64 & 1, i == (size_t)w->end);
    assert_int_equal(grammar_matcher_accept(m, w->end, &err), INGLE_OK);
    assert_int_equal(grammar_matcher_mask(m, &bit, &err), INGLE_OK);
    assert_true(bit[w->end / 64] >> w->end % 64 & 1);
    grammar_matcher_free(m);
    grammar_free(g);
}

/* Ambiguity, depth and length cost what they must and no more. */
static void test_limits(void **state)
{
    struct world *w = *state;
    struct err err = {0};
    size_t taken;
    struct grammar *g = world_grammar(w, GBNF, "root ::= (\"a\" | \"aa\" | \"aaa\"){0,100000}");
    struct grammar_matcher *m = world_matcher(w, g);
    ingle_status st = INGLE_OK;
    for (int i = 0; i < 20000 && !st; i++)
        st = grammar_matcher_accept_bytes(m, "a", 1, &taken, &err);
    assert_int_equal(st, INGLE_LIMIT);
    assert_non_null(strstr(err.msg, "ambiguous"));
    grammar_matcher_free(m);
    grammar_free(g);

    struct str many; /* alternatives leave by a chain as long as they are many */
    str_init(&many);
    str_adds(&many, "root ::= \"a\"");
    for (int i = 0; i < 100000; i++)
        str_adds(&many, "|\"a\"");
    g = world_grammar(w, GBNF, many.at);
    str_release(&many);
    grammar_free(g);

    g = world_grammar(w, JSON, "json");
    m = world_matcher(w, g);
    assert_int_equal(grammar_matcher_accept_bytes(m, "{\"a\":", 5, &taken, &err), INGLE_OK);
    for (taken = 1; taken;)
        assert_int_equal(grammar_matcher_accept_bytes(m, "[", 1, &taken, &err), INGLE_OK);
    world_check_mask(w, m, "deep");
    grammar_matcher_free(m);

    m = world_matcher(w, g); /* tables that start anew */
    assert_int_equal(grammar_matcher_accept_bytes(m, "{", 1, &taken, &err), INGLE_OK);
    for (int i = 0; i < 30000; i++) {
        char text[32];
        const int n = snprintf(text, sizeof text, "%s\"k%d\":[{\"x\":%d}]", i ? "," : "", i, i);
        assert_int_equal(grammar_matcher_accept_bytes(m, text, (size_t)n, &taken, &err), INGLE_OK);
        assert_int_equal(taken, n);
    }
    world_check_mask(w, m, "long");
    grammar_matcher_free(m);
    grammar_free(g);

    g = world_grammar(w, GBNF, "root ::= \"a\"{0,100000} \"b\"");
    assert_true(grammar_n_nodes(g) < 100);
    m = world_matcher(w, g);
    for (int i = 0; i < 100000; i++) {
        assert_int_equal(grammar_matcher_accept_bytes(m, "a", 1, &taken, &err), INGLE_OK);
        assert_int_equal(taken, 1);
    }
    world_check_mask(w, m, "counted");
    assert_int_equal(grammar_matcher_accept_bytes(m, "a", 1, &taken, &err), INGLE_OK);
    assert_int_equal(taken, 0);
    grammar_matcher_free(m);
    grammar_free(g);
}

/* Words anywhere in a text: as many beginnings as words, and one loop. */
static void test_words_anywhere(void **state)
{
    struct world *w = *state;
    struct str s;
    size_t taken;
    struct err err = {0};
    str_init(&s);
    str_adds(&s, "{\"type\":\"string\",\"pattern\":\"^x$|");
    for (int i = 0; i < 5000; i++)
        str_addf(&s, "%sw%05d", i ? "|" : "", i * 7919 % 100000);
    str_adds(&s, "\"}");
    struct grammar *g = world_grammar(w, SCHEMA, s.at);
    str_release(&s);
    static const char *const right[] = {"\"a ww07919!\"", "\"x\""},
                             *const wrong[] = {"\"w07918\"", "\"xx\""};
    for (int i = 0; i < 2; i++) {
        assert_true(world_fits(w, g, right[i], strlen(right[i]), false));
        assert_false(world_fits(w, g, wrong[i], strlen(wrong[i]), false));
    }
    struct grammar_matcher *m = world_matcher(w, g);
    assert_int_equal(grammar_matcher_accept_bytes(m, "\"ww0", 4, &taken, &err), INGLE_OK);
    world_check_mask(w, m, "words");
    grammar_matcher_free(m);
    grammar_free(g);
}

/* Many optional properties are one chain. */
/* A mask that is left after some steps, again and again, is the one that is made at once. */
static void test_pauses(void **state)
{
    const struct grammar_pause pause = {.max_steps = 1 << 15}; /* more than one state takes */
    struct world w;
    struct str text;
    struct err err;
    const uint64_t *bit;
    uint64_t want[16];
    int n_pauses = 0;
    (void)state;
    world_open(&w, false);
    str_init(&text);
    str_adds(&text, "root ::= ");
    for (int i = 0; i < 300; i++) /* each without a letter of its own */
        str_addf(&text, "%s[^%c%c]* \"<%d>\"", i ? " | " : "", 'a' + i % 26, 'A' + i / 26, i);
    struct grammar *g = world_grammar(&w, GBNF, text.at);
    struct grammar_matcher *at_once = world_matcher(&w, g), *paused = world_matcher(&w, g);
    const size_t n = (w.n + 3 + 63) / 64 * sizeof *want;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(grammar_matcher_mask(at_once, &bit, &err), INGLE_OK);
        memcpy(want, bit, n);
        ingle_status st;
        grammar_matcher_bound(paused, &pause);
        while ((st = grammar_matcher_mask(paused, &bit, &err)) == INGLE_CANCEL)
            n_pauses++;
        grammar_matcher_bound(paused, NULL);
        assert_int_equal(st, INGLE_OK);
        assert_memory_equal(bit, want, n);
        size_t n_taken;
        assert_int_equal(grammar_matcher_accept_bytes(paused, "bc", 2, &n_taken, &err), INGLE_OK);
        assert_int_equal(grammar_matcher_accept_bytes(at_once, "bc", 2, &n_taken, &err), INGLE_OK);
    }
    assert_true(n_pauses > 3);
    grammar_matcher_free(at_once);
    grammar_matcher_free(paused);
    grammar_free(g);
    str_release(&text);
    world_close(&w);
}

static void test_many_properties(void **state)
{
    struct world *w = *state;
    struct str s;
    str_init(&s);
    str_adds(&s, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < 500; i++)
        str_addf(&s, "%s\"p%d\":{\"type\":\"boolean\"}", i ? "," : "", i);
    str_adds(&s, "}}");
    struct grammar *g = world_grammar(w, SCHEMA, s.at);
    assert_true(grammar_n_nodes(g) < 40000);
    static const char yes[] = "{\"p3\":true,\"p77\":false,\"p499\":true}";
    static const char no[] = "{\"p4\":true,\"p3\":false}";
    assert_true(world_fits(w, g, yes, strlen(yes), true));
    assert_false(world_fits(w, g, no, strlen(no), false));
    str_release(&s);
    grammar_free(g);
}

/* ---- what is forced ---- */

/* As "abc<token>de+": open texts end with a +, those that are cut for want of room too. */
static char *forced(const struct world *w, enum grammar_form form, const char *text,
                    const char *behind, size_t room, size_t most)
{
    static char out[200];
    struct grammar *g = world_grammar(w, form, text);
    struct grammar_matcher *m;
    struct grammar_forced piece[8];
    struct err err;
    char bytes[64];
    size_t n = most, at = 0, taken = 0, used = 0;
    bool open = false;
    assert_int_equal(grammar_matcher_create(&m, g, w->v, &err), INGLE_OK);
    assert_int_equal(grammar_matcher_accept_bytes(m, behind, strlen(behind), &taken, &err),
                     INGLE_OK);
    assert_int_equal(taken, strlen(behind));
    assert_int_equal(grammar_matcher_forced(m, piece, &n, bytes, room, &open, &err), INGLE_OK);
    for (size_t i = 0; i < n; i++) {
        if (piece[i].token >= 0)
            used += (size_t)snprintf(out + used, sizeof out - used, "<%d>",
                                     piece[i].token - w->special);
        else
            used += (size_t)snprintf(out + used, sizeof out - used, "%.*s", (int)piece[i].n_bytes,
                                     bytes + at);
        at += piece[i].n_bytes;
    }
    snprintf(out + used, sizeof out - used, "%s", open ? "+" : "");
    grammar_matcher_free(m);
    grammar_free(g);
    return out;
}

static void test_forced(void **state)
{
    const struct world *w = *state;
    static const char object[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"const\":"
                                 "\"hello\"},\"age\":{\"type\":\"integer\"}},"
                                 "\"required\":[\"name\",\"age\"],\"additionalProperties\":false}";
    assert_string_equal(forced(w, REGEX, "abc", "", 64, 8), "abc");
    assert_string_equal(forced(w, REGEX, "abc(d|e)", "", 64, 8), "abc+");
    assert_string_equal(forced(w, REGEX, "abc(d|e)", "a", 64, 8), "bc+");
    assert_string_equal(forced(w, REGEX, "abc(d|e)", "abc", 64, 8), "+");
    assert_string_equal(forced(w, REGEX, "ab(c)?", "", 64, 8), "ab+");
    assert_string_equal(forced(w, REGEX, "abcdef", "", 4, 8), "abcd+");
    assert_string_equal(forced(w, REGEX, "(abc|abd)x", "", 64, 8), "ab+");
    assert_string_equal(forced(w, REGEX, "a{5}", "a", 64, 8), "aaaa");
    assert_string_equal(forced(w, GBNF, "root ::= \"ab\" <mark> \"cd\" <mark> [xy]", "", 64, 8),
                        "ab<0>cd<0>+");
    assert_string_equal(forced(w, GBNF, "root ::= \"ab\" <mark> \"cd\" <mark> [xy]", "", 64, 2),
                        "ab<0>+");
    assert_string_equal(forced(w, GBNF, "root ::= <mark> | \"a\"", "", 64, 8), "+");
    assert_string_equal(forced(w, SCHEMA, object, "{\"n", 64, 8), "ame\":+");
    assert_string_equal(forced(w, SCHEMA, object, "{\"name\": \"h", 64, 8), "ello\",+");
    assert_string_equal(forced(w, SCHEMA, object, "{\"name\": \"hello\", \"", 64, 8), "age\":+");
    /* "hello" is one token, and so is each of its letters; "q" and "u" have none but their
     * bytes. */
    assert_true(grammar_vocab_single(w->v, "qu", 2, false));
    assert_true(grammar_vocab_single(w->v, "qu", 2, true));
    assert_false(grammar_vocab_single(w->v, "hello", 5, false));
    assert_true(grammar_vocab_single(w->v, "hell", 4, false));
    assert_false(grammar_vocab_single(w->v, "hell", 4, true)); /* an o may follow */
}

/* Every keyword with values of every kind, in every place of a schema: a grammar or an error with a
 * text. */
static void check_kinds(const struct world *w, const char *keyword, const char *value)
{
    static const char *const place[] = {
        "{\"%s\":%s}",
        "{\"type\":\"object\",\"%s\":%s}",
        "{\"type\":\"array\",\"%s\":%s}",
        "{\"type\":\"string\",\"%s\":%s}",
        "{\"properties\":{\"a\":{}},\"propertyNames\":{\"%s\":%s}}",
        "{\"properties\":{\"a\":{\"%s\":%s}}}",
        "{\"allOf\":[{\"%s\":%s},{\"required\":[\"q\"]}]}",
        "{\"allOf\":[{\"enum\":[\"a\",1,{\"a\":1},[1]]},{\"%s\":%s}]}",
        "{\"uniqueItems\":true,\"items\":{\"%s\":%s}}",
        "{\"patternProperties\":{\"a\":{\"%s\":%s}},\"properties\":{\"aa\":{}}}",
        "{\"const\":{\"a\":[1]},\"%s\":%s}",
        "{\"not\":{\"%s\":%s}}"};
    for (size_t i = 0; i < sizeof place / sizeof *place; i++) {
        struct grammar *g = NULL;
        struct err err = {0};
        struct str s;
        str_init(&s);
        for (const char *c = place[i], *fill = keyword; *c; c++) {
            if (c[0] != '%') {
                str_addc(&s, *c);
                continue;
            }
            str_adds(&s, fill);
            fill = value;
            c++;
        }
        if (world_try(w, &g, SCHEMA, s.at, &err) ? !err.msg[0] : !g)
            fail_msg("%s: neither a grammar nor an error", s.at);
        grammar_free(g);
        str_release(&s);
    }
}

static void test_kinds(void **state)
{
    static const char *const keyword[] = {"type",
                                          "properties",
                                          "required",
                                          "additionalProperties",
                                          "items",
                                          "prefixItems",
                                          "additionalItems",
                                          "enum",
                                          "const",
                                          "anyOf",
                                          "oneOf",
                                          "allOf",
                                          "not",
                                          "$ref",
                                          "$defs",
                                          "pattern",
                                          "format",
                                          "minLength",
                                          "maxLength",
                                          "minItems",
                                          "maxItems",
                                          "uniqueItems",
                                          "minimum",
                                          "maximum",
                                          "exclusiveMinimum",
                                          "multipleOf",
                                          "propertyNames",
                                          "patternProperties",
                                          "unevaluatedProperties",
                                          "unevaluatedItems",
                                          "minProperties",
                                          "dependentRequired",
                                          "if",
                                          "contains",
                                          "nullable"};
    static const char *const value[] = {"\"x\"",
                                        "5",
                                        "-1",
                                        "1.5",
                                        "true",
                                        "false",
                                        "null",
                                        "[]",
                                        "{}",
                                        "[5]",
                                        "[\"a\"]",
                                        "[\"a\",\"a\"]",
                                        "[[]]",
                                        "[{}]",
                                        "[null]",
                                        "{\"a\":5}",
                                        "{\"a\":[]}",
                                        "{\"a\":null}",
                                        "{\"required\":\"a\"}",
                                        "{\"properties\":5}",
                                        "{\"enum\":\"x\"}",
                                        "{\"propertyNames\":\"x\"}",
                                        "[{\"required\":\"a\"}]"};
    for (size_t k = 0; k < sizeof keyword / sizeof *keyword; k++)
        for (size_t i = 0; i < sizeof value / sizeof *value; i++)
            check_kinds(*state, keyword[k], value[i]);
}

static int open_world(void **state)
{
    struct world *w = mem_zalloc(sizeof *w);
    assert_non_null(w);
    world_open(w, false);
    *state = w;
    return 0;
}

static int close_world(void **state)
{
    world_close(*state);
    mem_free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples), cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_limits),  cmocka_unit_test(test_many_properties),
        cmocka_unit_test(test_pauses),  cmocka_unit_test(test_forced),
        cmocka_unit_test(test_kinds),   cmocka_unit_test(test_words_anywhere),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
