// Chat templates: the subset of Jinja that model directories use (for, if, set, macros where
// needed, filters, tests, string methods, namespace, raise_exception), interpreted. An unsupported
// construct is refused at parse time with its line; it never renders something else in silence.
//
// Thread rules: immutable after parsing; render may be called from any thread. Rendering is bounded
// in steps and output size.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "base/result.h"

namespace expertplex {

class ChatTemplate {
 public:
  static Result<std::shared_ptr<const ChatTemplate>> parse(std::string source);
  ~ChatTemplate();

  // `variables` is the template's context: messages (array of {role, content, ...}),
  // add_generation_prompt, bos_token, eos_token, tools, and what the request's chat_template_kwargs
  // say. raise_exception('...') comes back as kInvalidArgument with that text.
  Result<std::string> render(const Json& variables) const;

  // The same with the fields of objects in the order of the request: Json sorts them, which shows
  // where a template writes `tool | tojson`.
  Result<std::string> render_ordered(const nlohmann::ordered_json& variables) const;

 private:
  ChatTemplate();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace expertplex
