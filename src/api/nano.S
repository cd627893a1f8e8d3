/* SPDX-License-Identifier: Apache-2.0
 * The built-in model, and its encoders of pictures and sound, as GGUF files in read-only memory.
 * NANO_FILE and NANO_ENCODERS come from the build. */
    .section .rodata
    .balign 64
    .globl engine_nano
    .hidden engine_nano
    .type engine_nano, %object
engine_nano:
    .incbin NANO_FILE
    .size engine_nano, . - engine_nano
    .globl engine_nano_end
    .hidden engine_nano_end
    .type engine_nano_end, %object
engine_nano_end:
    .byte 0
    .size engine_nano_end, 1
    .balign 64
    .globl engine_nano_encoders
    .hidden engine_nano_encoders
    .type engine_nano_encoders, %object
engine_nano_encoders:
    .incbin NANO_ENCODERS
    .size engine_nano_encoders, . - engine_nano_encoders
    .globl engine_nano_encoders_end
    .hidden engine_nano_encoders_end
    .type engine_nano_encoders_end, %object
engine_nano_encoders_end:
    .byte 0
    .size engine_nano_encoders_end, 1
    .section .note.GNU-stack, "", %progbits
