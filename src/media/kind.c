/* SPDX-License-Identifier: Apache-2.0 */
/* Formats by their first bytes, and what the kernel has. */
#define _GNU_SOURCE
#include "media/inner.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#endif

static bool has(const uint8_t *at, size_t n, size_t offset, const char *bytes, size_t n_bytes)
{
    return n >= offset && n - offset >= n_bytes && memcmp(at + offset, bytes, n_bytes) == 0;
}
#define HAS(offset, text) has(at, n, offset, text, sizeof(text) - 1)

enum media_kind media_sniff(const void *bytes, size_t n)
{
    const uint8_t *at = bytes;
    if (HAS(0, "\xFF\xD8\xFF"))
        return MEDIA_JPEG;
    if (HAS(0, "\x89PNG\r\n\x1A\n"))
        return MEDIA_PNG;
    if (HAS(0, "RIFF") && HAS(8, "WEBP"))
        return MEDIA_WEBP;
    if (HAS(0, "GIF87a") || HAS(0, "GIF89a"))
        return MEDIA_GIF;
    if (HAS(0, "RIFF") && HAS(8, "WAVE"))
        return MEDIA_WAV;
    return MEDIA_UNKNOWN;
}

/* An ISO file: the brand says what it is. */
static const char *boxed_name(const uint8_t *at, size_t n)
{
    if (HAS(8, "heic") || HAS(8, "heix") || HAS(8, "hevc") || HAS(8, "mif1") || HAS(8, "msf1"))
        return "HEIC";
    if (HAS(8, "avif") || HAS(8, "avis"))
        return "AVIF";
    return HAS(8, "M4A ") ? "M4A" : "MP4";
}

static bool is_svg(const uint8_t *at, size_t n)
{
    size_t i = HAS(0, "\xEF\xBB\xBF") ? 3 : 0;
    while (i < n && i < 256 && (at[i] == ' ' || (at[i] >= '\t' && at[i] <= '\r')))
        i++;
    return HAS(i, "<svg") || HAS(i, "<?xml") || HAS(i, "<!DOCTYPE svg");
}

const char *media_foreign_name(const void *bytes, size_t n)
{
    static const struct {
        size_t offset, n;
        const char *bytes, *name;
    } known[] = {
#define ROW(offset, bytes, name) {offset, sizeof(bytes) - 1, bytes, name}
        ROW(0, "%PDF", "PDF"),
        ROW(0, "PK\x03\x04", "ZIP"),
        ROW(0, "PK\x05\x06", "ZIP"),
        ROW(0, "BM", "BMP"),
        ROW(0, "II*\0", "TIFF"),
        ROW(0, "MM\0*", "TIFF"),
        ROW(0, "\0\0\x01\0", "ICO"),
        ROW(0, "8BPS", "PSD"),
        ROW(0, "\xFF\x0A", "JPEG XL"),
        ROW(0, "\0\0\0\x0CJXL ", "JPEG XL"),
        ROW(0, "\0\0\0\x0CjP  ", "JPEG 2000"),
        ROW(0, "fLaC", "FLAC"),
        ROW(0, "OggS", "Ogg"),
        ROW(0, "ID3", "MP3"),
        ROW(0, "\xFF\xFB", "MP3"),
        ROW(0, "\xFF\xF3", "MP3"),
        ROW(0, "\xFF\xF2", "MP3"),
        ROW(0, "FORM", "AIFF"),
        ROW(0, "RIFX", "RIFX"),
        ROW(0, "RF64", "RF64"),
        ROW(0, "\x1A\x45\xDF\xA3", "Matroska or WebM"),
        ROW(0, "\x1F\x8B", "gzip"),
        ROW(0, "#!AMR", "AMR"),
        ROW(8, "AVI ", "AVI"),
#undef ROW
    };
    const uint8_t *at = bytes;
    if (HAS(4, "ftyp"))
        return boxed_name(at, n);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (has(at, n, known[i].offset, known[i].bytes, known[i].n))
            return known[i].name;
    return is_svg(at, n) ? "SVG or XML" : NULL;
}

bool media_is_picture(enum media_kind kind)
{
    return kind >= MEDIA_JPEG && kind <= MEDIA_GIF;
}

static const struct {
    const char *name, *library;
    bool built;
} kinds[MEDIA_N_KINDS] = {
    [MEDIA_UNKNOWN] = {"unknown", "", false},
#ifdef INGLE_JPEG
    [MEDIA_JPEG] = {"JPEG", "libjpeg-turbo", true},
#else
    [MEDIA_JPEG] = {"JPEG", "libjpeg-turbo", false},
#endif
#ifdef INGLE_PNG
    [MEDIA_PNG] = {"PNG", "libpng", true},
#else
    [MEDIA_PNG] = {"PNG", "libpng", false},
#endif
#ifdef INGLE_WEBP
    [MEDIA_WEBP] = {"WebP", "libwebp", true},
#else
    [MEDIA_WEBP] = {"WebP", "libwebp", false},
#endif
    [MEDIA_GIF] = {"GIF", "", true},
    [MEDIA_WAV] = {"WAV", "", true},
};

static size_t row_of(enum media_kind kind)
{
    return (unsigned)kind < MEDIA_N_KINDS ? (size_t)kind : MEDIA_UNKNOWN;
}

const char *media_kind_name(enum media_kind kind)
{
    return kinds[row_of(kind)].name;
}

bool media_can_decode(enum media_kind kind)
{
    return kinds[row_of(kind)].built;
}

const char *media_library(enum media_kind kind)
{
    return kinds[row_of(kind)].library;
}

int media_landlock(void)
{
    enum { VERSION = 1 };
    const long v = syscall(SYS_landlock_create_ruleset, NULL, 0UL, (unsigned)VERSION);
    return v > 0 ? (int)v : 0;
}
