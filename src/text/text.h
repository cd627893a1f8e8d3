/*
 * text - words to tokens and back: tokenizers, chat formats, output parsers.
 * The door of the room; each part's contract stands in its own header.
 */
#ifndef INGLE_TEXT_TEXT_H
#define INGLE_TEXT_TEXT_H

#include "text/avoid.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#endif
