"""llama_expected.py - what of llama.cpp's server tests cannot pass here, and why.

EXPECTED: (pattern of "file::test[parameters]", kind, reason).  Kinds: "text", what the suite's model writes;
"count", how many tokens its vocabulary makes of a text; "choice", what is done differently on purpose;
"absent", what there is not.  A test that fails and is not listed is a failure, and so is one that is listed
and passes.  FILES: files that are about something else altogether; they are not run.
"""

FILES = {
    "test_embedding.py": "no embeddings: neither family is made for them",
    "test_rerank.py": "no reranking",
    "test_infill.py": "no infill: neither family is trained for it",
    "test_lora.py": "no adapters",
    "test_vision_api.py": "no images",
    "test_speculative.py": "no drafting by a second model file",
    "test_proxy.py": "no fetching for web pages",
    "test_mcp_servers.py": "no tools that the server runs",
    "test_tools_builtin.py": "no tools that the server runs",
    "test_compat_gcp.py": "no words of Vertex AI",
    "test_sleep.py": "no unloading of the only model of a server (several models: ttl)",
    "test_kv_keep_only_active.py": "reads llama-server's log",
}

EXPECTED = [
    ("test_basic.py::test_load_split_model", "absent", "a model that is not here (split files: tests/unit/io_gguf.c)"),
    ("test_basic.py::test_server_model_aliases_and_tags", "choice",
     "the id is the first alias that was given, not the first of the alphabet"),

    ("test_security.py::test_access_static_assets_without_api_key", "choice", "the page is one file"),
    ("test_security.py::test_cors_options*", "choice", "other web sites are let in by name alone (--cors-origins)"),
    ("test_security.py::test_cors_origins_defaults_to_localhost_with_tools_enabled", "absent",
     "no tools that the server runs"),
    ("test_security.py::test_cors_proxy_only_forwards_explicit_proxy_headers", "absent",
     "no fetching for web pages"),
    ("test_security.py::test_local_media_file*", "absent", "no images"),

    ("test_template.py::*-expected_generation_prompt*", "absent", "templates of other models"),
    ("test_template.py::test_reasoning*", "absent", "templates of other models"),
    ("test_template.py::test_date_inside_prompt*", "absent", "templates of other models"),
    ("test_template.py::test_add_generation_prompt*-True]", "absent", "templates of other models"),
    ("test_chat_completion.py::test_chat_template", "absent", "templates of other models"),
    ("test_chat_completion.py::test_chat_template_assistant_prefill*", "absent", "templates of other models"),
    ("test_chat_completion.py::test_chat_template_continue_final_message_vllm_compat", "absent",
     "templates of other models"),
    ("test_chat_completion.py::test_apply_chat_template", "absent", "templates of other models"),
    ("test_compat_anthropic.py::test_anthropic_thinking_history_in_template", "absent",
     "templates of other models"),

    ("test_tokenize.py::test_tokenize_with_bos", "count", "its BOS is token 1"),
    ("test_ctx_shift.py::test_ctx_shift_enabled", "choice", "a full context ends an answer; nothing is shifted out"),
    ("test_ctx_shift.py::test_ctx_shift_disabled_short_prompt[[]-1*", "count", "8 tokens of prompt"),
    ("test_ctx_shift.py::test_ctx_shift_disabled_long_prompt", "count", "the prompt has fewer tokens"),
    ("test_chat_completion.py::test_chat_completion[[]*", "count", "tokens of the prompt"),
    ("test_chat_completion.py::test_chat_completion_cached_tokens", "count", "tokens of the prompt"),
    ("test_chat_completion.py::test_chat_completion_stream[[]*", "text", "what the model writes"),
    ("test_chat_completion.py::test_chat_completion_with_openai_library", "text", "what the model writes"),
    ("test_chat_completion.py::test_return_progress[[]64-4-False]", "count", "the prompt has fewer steps"),
    ("test_chat_completion.py::test_context_size_exceeded*", "choice",
     "the type is OpenAI's, invalid_request_error; code, n_prompt_tokens and n_ctx tell the rest"),
    ("test_completion.py::test_completion[[]*", "count", "tokens of the prompt"),
    ("test_completion.py::test_completion_stream[[]*", "count", "tokens of the prompt"),
    ("test_completion.py::test_completion_with_openai_library", "text", "what the model writes"),
    ("test_completion.py::test_completion_stream_with_openai_library", "text", "what the model writes"),
    ("test_completion.py::test_completion_response_fields*fields1]", "count", "the text of its BOS in the prompt"),
    ("test_completion.py::test_completion_prompt_cache", "count", "tokens of the prompt"),

    ("test_metrics.py::test_metrics_disabled", "choice", "/metrics is always there"),
    ("test_metrics.py::test_metrics_timings_are_finite*", "choice", "timings has an object, 'ingle'"),
    ("test_metrics.py::test_metrics_embedding_prompt_is_counted", "absent", "no embeddings"),

    ("test_slot_save.py::test_slot_save_restore", "count", "tokens of the prompt"),
    ("test_slot_save.py::test_slot_erase", "count", "tokens of the prompt"),
    ("test_slot_save.py::test_slot_restore_legacy_token_list", "count",
     "takes llama.cpp's file apart; ours: tests/serve/slots.py"),
    ("test_slot_save.py::*image*", "absent", "no images"),
    ("test_slot_save.py::*multimodal*", "absent", "no images"),
    ("test_slot_save.py::*media*", "absent", "no images"),

    ("test_compat_oai_responses.py::test_responses_stream_with_llama_telemetry", "choice",
     "an answer that is cut ends with response.incomplete"),
    ("test_compat_oai_responses.py::test_responses_with_openai_library", "text", "what the model writes"),
    ("test_compat_anthropic.py::test_anthropic_tool_result_with_image", "choice",
     "an image that a tool returns becomes a line of text"),
    ("test_compat_anthropic.py::test_anthropic_vision_format_accepted", "choice", "an image is a 400, not a 500"),
    ("test_compat_anthropic.py::test_anthropic_vision_base64_with_multimodal_model", "absent", "no images"),
    ("test_compat_anthropic.py::test_anthropic_empty_messages", "choice", "no messages are a 400, as at Anthropic"),
    ("test_compat_anthropic.py::test_anthropic_thinking_with_reasoning_model*", "absent",
     "a model that is not here"),
    ("test_stream.py::test_stream_stop_during_model_load", "choice",
     "a request that waits for its model is ended by its client; a stream begins when the model is loaded"),
    ("test_stream.py::test_stream_resumes_after_reload_during_model_load", "choice",
     "a request that waits for its model ends with its client"),
    ("test_router.py::test_router_dedup_cache_models", "choice",
     "models that were pulled are not listed by themselves: a section or a folder names them"),
    ("test_router.py::test_router_remote_preset", "absent", "no lists of models from a hub"),
    ("test_router.py::test_router_download_model", "absent", "no downloads by request: ingle pull, or a model hf:OWNER/NAME"),
    ("test_router.py::test_router_delete_model", "absent", "no downloads by request, and no files are deleted"),
]

# The model may end these by itself.
FREE = ["test_ignore_eos.py::*", "test_compat_anthropic.py::*tool*"]
