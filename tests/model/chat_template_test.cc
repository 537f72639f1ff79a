// Refusals and bounds; what templates render is in chat_template_golden_test.cc.
#include "model/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "golden_files.h"
#include "model/tokenizer.h"

namespace expertplex {
namespace {

using testing::HasSubstr;

Result<std::string> render(const std::string& source, const Json& variables = Json::object()) {
  EXPERTPLEX_ASSIGN(const auto parsed, ChatTemplate::parse(source));
  return parsed->render(variables);
}

std::string repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

TEST(ChatTemplate, RefusesUnsupportedConstructsByLine) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"a\nb\n{% include 'x' %}", "line 3: {% include %} is not supported"},
      {"{% call f() %}{% endcall %}", "line 1: {% call %} is not supported"},
      {"\n{{ x|escape }}", "line 2: filter 'escape' is not supported"},
      {"{{ x is filter }}", "line 1: test 'filter' is not supported"},
      {"\n\n{{ x.format(1) }}", "line 3: method 'format' is not supported"},
      {"{{ x.append(1) }}", "line 1: method 'append' is not supported"},
      {"{{ lipsum() }}", "line 1: function 'lipsum' is not supported"},
      {"{% for a in b recursive %}{% endfor %}", "a recursive loop is not supported"},
      {"{% set a, b = c %}", "{% set %} of several names is not supported"},
      {"{{ f(*x) }}", "an unpacked argument is not supported"},
      {"{% for i in x %}{% macro m() %}{% endmacro %}{% endfor %}",
       "a macro inside a loop or macro"},
  };
  for (const auto& [source, message] : cases) {
    const auto parsed = ChatTemplate::parse(source);
    ASSERT_FALSE(parsed) << source;
    EXPECT_EQ(parsed.error().code, ErrorCode::kUnsupported) << source;
    EXPECT_THAT(parsed.error().message, HasSubstr("chat template: line ")) << source;
    EXPECT_THAT(parsed.error().message, HasSubstr(message)) << source;
  }
}

TEST(ChatTemplate, RefusesBrokenSyntaxByLine) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"\n{% if x %}", "expected {% endif %}"},
      {"{% endif %}", "unexpected {% endif %}"},
      {"{% for x in y %}{% endif %}", "expected {% endfor %}"},
      {"{{ x", "a tag is not closed with }}"},
      {"{{ 'x }}", "a string that begins in line 1 is not closed"},
      {"{# x", "a comment is not closed"},
      {"{{ (1 }}", "unexpected '}'"},
      {"{{ 1 + }}", "expected a value"},
      {"{% break %}", "break outside of a loop"},
      {"{% %}", "expected the name of a tag"},
      {"{{ a ? b }}", "unexpected character '?'"},
      {"{{ 99999999999999999999 }}", "a number of more than 18 digits"},
      {"{% raw %}", "raw has no endraw"},
      {"{{ f(a=1, 2) }}", "a positional argument after a named one"},
  };
  for (const auto& [source, message] : cases) {
    const auto parsed = ChatTemplate::parse(source);
    ASSERT_FALSE(parsed) << source;
    EXPECT_THAT(parsed.error().message, HasSubstr("chat template: line ")) << source;
    EXPECT_THAT(parsed.error().message, HasSubstr(message)) << source;
  }
}

TEST(ChatTemplate, FaultsWhileRenderingNameTheLine) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"\n{{ missing.x }}", "line 2: 'missing' is undefined"},
      {"{{ 1 + 'a' }}", "line 1: operator '+' does not work on 'int' and 'str'"},
      {"{{ 1 // 0 }}", "division by zero"},
      {"{{ 'a' < 1 }}", "'str' and 'int' cannot be ordered"},
      {"{% for x in 3 %}{% endfor %}", "'int' cannot be iterated"},
      {"{{ 3.strip() }}", "'int' has no method 'strip'"},
      {"{{ x|tojson }}", "cannot be written as JSON"},
      {"{% set ns = namespace() %}{{ [ns] }}", "a namespace cannot be stored"},
      {"{% set d = {} %}{% set d.x = 1 %}", "only a namespace's attributes can be set, got 'dict'"},
      {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
       "macro 'm': expected at most 1 arguments, got 2"},
      {"{{ 9223372036854775 * 9223372036854775 }}", "integer overflow"},
  };
  for (const auto& [source, message] : cases) {
    const auto text = render(source);
    ASSERT_FALSE(text) << source;
    EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(text.error().message, HasSubstr(message)) << source;
  }
}

TEST(ChatTemplate, RaisedMessagesComeBackAsTheyAre) {
  const auto text =
      render("\n\n{% for i in [1] %}{{ raise_exception('Roles must alternate') }}{% endfor %}");
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().message, "Roles must alternate");
}

TEST(ChatTemplate, RenderingIsBounded) {
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"{% for a in range(9000) %}{% for b in range(9000) %}{% endfor %}{% endfor %}", "steps"},
      {"{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% "
       "endfor %}",
       "grew beyond"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% "
       "endfor %}",
       "grew beyond"},
      {"{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}",
       "nested deeper"},
      {"{{ 'a' * 9999999999 }}", "a repetition is too long"},
      {"{{ range(999999999) }}", "more than 100000 numbers"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "macros call each other deeper"},
      {"{% set x = 'a' * 1000000 %}{% for i in range(999) %}{{ x }}{% endfor %}",
       "writes more than"},
      {"{% set x = 'a' * 9000000 %}{% for i in range(999) %}{% set y = x ~ 'b' %}{% endfor %}",
       "copies too much"},
  };
  for (const auto& [source, message] : cases) {
    const auto text = render(source);
    ASSERT_FALSE(text) << source;
    EXPECT_THAT(text.error().message, HasSubstr(message)) << source;
  }
}

TEST(ChatTemplate, ParsingIsBounded) {
  for (const std::string& source :
       {"{{ " + repeated("(", 10'000) + " }}", "{{ " + repeated("[", 10'000) + " }}",
        "{{ " + repeated("not ", 10'000) + "x }}", "{{ " + repeated("-", 10'000) + "1 }}",
        "{{ 1" + repeated(" + 1", 10'000) + " }}", "{{ x" + repeated("|trim", 10'000) + " }}",
        "{{ x" + repeated(".y", 10'000) + " }}", "{{ x" + repeated(" if y", 10'000) + " }}",
        repeated("{% if x %}", 10'000), repeated("{% for x in y %}", 10'000)}) {
    EXPECT_FALSE(ChatTemplate::parse(source)) << source.substr(0, 30);
  }
  EXPECT_FALSE(ChatTemplate::parse("\xFF"));
}

TEST(ChatTemplate, DeepTreesRender) {
  EXPECT_EQ(*render("{{ 1" + repeated(" + 1", 390) + " }}"), "391");
  EXPECT_EQ(*render("{{ " + repeated("(", 40) + "1" + repeated(")", 40) + " }}"), "1");
}

TEST(ChatTemplate, OrderedVariablesKeepTheirOrder) {
  const auto parsed = ChatTemplate::parse("{{ t|tojson }}");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(*(*parsed)->render_ordered(nlohmann::ordered_json::parse(R"({"t":{"b":1,"a":2}})")),
            R"({"b": 1, "a": 2})");
}

TEST(ChatTemplate, TemplateOfAGoldenModel) {
  const auto tokenizer = Tokenizer::load(golden_directory("minimax_m2"));
  ASSERT_TRUE(tokenizer);
  const Json messages = {{{"role", "user"}, {"content", "Hi"}}};
  EXPECT_EQ(*render((*tokenizer)->chat_template(), {{"messages", messages},
                                                    {"bos_token", "<|begin|>"},
                                                    {"add_generation_prompt", true}}),
            "<|begin|><|role|>user\nHi<|end|>\n<|role|>assistant\n");
}

TEST(ChatTemplate, NowIsAYear) {
  EXPECT_THAT(*render("{{ strftime_now('%Y') }}"), testing::MatchesRegex("20[0-9][0-9]"));
}

}  // namespace
}  // namespace expertplex
