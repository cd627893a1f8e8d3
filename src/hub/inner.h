/* inner - what the files of hub share. */
#ifndef INGLE_HUB_INNER_H
#define INGLE_HUB_INNER_H

#include "base/str.h"
#include "hub/hub.h"
#include <curl/curl.h>

/* A name in its parts. */
struct hub_name {
    char repository[200]; /* "OWNER/NAME" */
    char code[64];        /* or "" */
};
MUST_CHECK ingle_status hub_name_read(const char *text, struct hub_name *out, struct err *err);
/* Whether a path from the hub stays below the folder. */
bool hub_path_is_safe(const char *path);

/* A handle for one request to url, with the token where it belongs; NULL: no memory. */
CURL *hub_request(const struct hub_options *o, const char *url);
void hub_escape(struct str *out, const char *path);
/* The file at DIRECTORY/OWNER/NAME/PATH is whole afterwards. */
MUST_CHECK ingle_status hub_fetch(const struct hub_options *o, const char *repository, const char *folder, const struct hub_file *f,
                                  uint64_t done_before, uint64_t all, struct err *err);

#endif
