//! Chat templates as models carry them, against what Jinja2 makes of them.
#![cfg(feature = "text")]

use gantry_runtime::text::{ChatTemplate, Message, TextError, Vocab, chat::ChatOptions};
use std::time::{Duration, UNIX_EPOCH};

/// SmolLM2: ChatML with a system prompt of its own.
const SMOLLM2: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}\
{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Llama 3: BOS with the first message, contents trimmed.
const LLAMA3: &str = "{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

/// The head of Llama 3.1's: dates, and blocks on lines of their own.
const LLAMA31: &str = r#"{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none %}
    {{- "tools!" }}
{%- endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
"#;

/// Qwen 2.5 without its tools.
const QWEN2: &str = r#"{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- else %}
    {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"#;

/// Mistral: turns must alternate.
const MISTRAL: &str = "{{ bos_token }}{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}\
{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}";

fn messages(list: &[(&str, &str)]) -> Vec<Message> {
    list.iter().map(|&(role, content)| Message::new(role, content)).collect()
}

fn prompt() -> ChatOptions {
    ChatOptions { add_generation_prompt: true, ..ChatOptions::default() }
}

fn render(source: &str, list: &[(&str, &str)], options: &ChatOptions) -> Result<String, TextError> {
    ChatTemplate::new(source, "<s>", "</s>").unwrap().render(&messages(list), options)
}

#[test]
fn smollm2() {
    let text = render(SMOLLM2, &[("user", "Hi <b>&</b>")], &prompt()).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nHi <b>&</b><|im_end|>\n<|im_start|>assistant\n"
    );
    let list = [("system", "Short."), ("user", "1+1?"), ("assistant", "2")];
    let text = render(SMOLLM2, &list, &ChatOptions::default()).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nShort.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n\
         <|im_start|>assistant\n2<|im_end|>\n"
    );
}

#[test]
fn llama3() {
    let template = ChatTemplate::new(LLAMA3, "<|begin_of_text|>", "<|eot_id|>").unwrap();
    let text = template.render(&messages(&[("user", "  Hi \n"), ("assistant", "Yes?")]), &prompt()).unwrap();
    assert_eq!(
        text,
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\nYes?<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n"
    );
}

#[test]
fn dates_are_fixed_unless_asked_for() {
    let body = "\n\n<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>";
    let text = render(LLAMA31, &[("user", "Hi")], &ChatOptions::default()).unwrap();
    assert_eq!(text, format!("<s>Today Date: 26 Jul 2024{body}"));
    let now =
        ChatOptions { now: Some(UNIX_EPOCH + Duration::from_secs(1_735_689_599)), ..ChatOptions::default() };
    assert_eq!(
        render(LLAMA31, &[("user", "Hi")], &now).unwrap(),
        format!("<s>Today Date: 31 Dec 2024{body}")
    );
    let mut given = ChatOptions::default();
    given.variables.insert("date_string".into(), "today".into());
    assert_eq!(render(LLAMA31, &[("user", "Hi")], &given).unwrap(), format!("<s>Today Date: today{body}"));
}

#[test]
fn qwen2() {
    let text = render(QWEN2, &[("user", "Hi")], &prompt()).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n\
         <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    let text = render(QWEN2, &[("system", "S"), ("user", "Hi")], &ChatOptions::default()).unwrap();
    assert_eq!(text, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
}

#[test]
fn mistral() {
    let list = [("user", "Hi"), ("assistant", "Yes?"), ("user", "Bye")];
    assert_eq!(render(MISTRAL, &list, &prompt()).unwrap(), "<s>[INST] Hi [/INST]Yes?</s>[INST] Bye [/INST]");
    let refused = render(MISTRAL, &[("user", "Hi"), ("user", "Hi?")], &prompt()).unwrap_err();
    let message = "Conversation roles must alternate user/assistant/user/assistant/...".to_owned();
    assert_eq!(refused, TextError::ChatRefused { message });
    // A refusal is forgotten by the next rendering.
    let template = ChatTemplate::new(MISTRAL, "", "").unwrap();
    assert!(template.render(&messages(&[("system", "S")]), &prompt()).is_err());
    assert_eq!(template.render(&messages(&[("user", "Hi")]), &prompt()).unwrap(), "[INST] Hi [/INST]");
}

#[test]
fn python_ways() {
    let source = r#"{% for m in messages %}
  {% if m.content.startswith('skip') %}{% continue %}{% endif %}
{{ m['content'].strip().split('|')[-1].upper() }};
{% endfor %}
{{ {'b': 1, 'a': [true, none, '<é>'], 'c': {}} | tojson }}
{{ {'x': [1, 2.5]} | tojson(indent=2) }}
{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"#;
    let text = render(source, &[("user", " a|b "), ("user", "skip me")], &ChatOptions::default()).unwrap();
    assert_eq!(
        text,
        "B;\n{\"b\": 1, \"a\": [true, null, \"<é>\"], \"c\": {}}\n{\n  \"x\": [\n    1,\n    2.5\n  ]\n}\n2"
    );
}

#[test]
fn the_standard_variables_are_ours() {
    let mut options = prompt();
    options.variables.insert("bos_token".into(), "mine".into());
    options.variables.insert("enable_thinking".into(), false.into());
    let text = render("{{ bos_token }} {{ enable_thinking }} {{ unknown }}", &[], &options).unwrap();
    assert_eq!(text, "<s> False ");
    // As in Qwen3-Coder.
    let source = "{% if tools is iterable and tools | length > 0 %}tools{% else %}none{% endif %}";
    assert_eq!(render(source, &[], &options).unwrap(), "none");
    assert_eq!(render("{{ [] is iterable }} {{ 1 is iterable }}", &[], &options).unwrap(), "True False");
}

#[test]
fn errors_say_what_to_do() {
    let missing = ChatTemplate::from_vocab(&Vocab::default()).unwrap_err();
    assert_eq!(missing, TextError::NoChatTemplate);
    assert!(missing.to_string().contains("use plain completion"), "{missing}");
    let broken = ChatTemplate::new("{% if x %}\n{{ y", "", "").unwrap_err();
    assert!(matches!(&broken, TextError::ChatSyntax { detail } if detail.contains("chat:2")), "{broken}");
    let fails = render("{{ messages[0].content.nothing() }}", &[("user", "x")], &prompt()).unwrap_err();
    assert!(matches!(fails, TextError::ChatRender { .. }), "{fails}");
}

#[test]
fn a_template_without_end_is_stopped() {
    let many = "{% for a in range(10000) %}{% for b in range(10000) %}BODY{% endfor %}{% endfor %}";
    for (source, part) in [
        (many.replace("BODY", ""), "steps"),
        (many.replace("BODY", "{% if a %}{% endif %}"), "steps"),
        ("{{ 'x' * 100000000 }}".to_owned(), "67108864 bytes"),
        (
            "{% set ns = namespace(v=[1]) %}{% for i in range(60) %}{% set ns.v = [ns.v, ns.v] %}{% endfor %}\
             {{ ns.v | tojson }}"
                .to_owned(),
            "steps",
        ),
    ] {
        let stopped = render(&source, &[], &prompt()).unwrap_err();
        assert!(matches!(stopped, TextError::ChatTooLarge { .. }), "{source}: {stopped}");
        assert!(stopped.to_string().contains(part), "{source}: {stopped}");
    }
    // A long conversation is far from any limit.
    let long: Vec<_> = (0..2000).map(|i| (["user", "assistant"][i % 2], "0123456789abcdef")).collect();
    assert!(render(MISTRAL, &long, &prompt()).is_ok());
    let text = "x".repeat(1 << 20);
    assert!(render(QWEN2, &[("user", &text)], &prompt()).is_ok());
}

#[test]
fn json_is_neither_wide_nor_deep_without_end() {
    assert!(render("{{ [1] | tojson(indent=16) }}", &[], &prompt()).is_ok());
    for indent in ["17", "100000000000", "18446744073709551615"] {
        let wide = render(&format!("{{{{ [[1]] | tojson(indent={indent}) }}}}"), &[], &prompt()).unwrap_err();
        assert!(wide.to_string().contains("expected at most 16"), "{wide}");
    }
    let deep = "{% set ns = namespace(v=1) %}{% for i in range(N) %}{% set ns.v = [ns.v] %}{% endfor %}\
                {{ ns.v | tojson }}";
    assert!(render(&deep.replace('N', "128"), &[], &prompt()).is_ok());
    let deep = render(&deep.replace('N', "129"), &[], &prompt()).unwrap_err();
    assert!(deep.to_string().contains("more than 128 deep"), "{deep}");
}
