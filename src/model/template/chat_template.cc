#include "model/chat_template.h"

#include "model/template/interpreter.h"
#include "model/template/parser.h"

namespace expertplex {

struct ChatTemplate::Impl {
  std::vector<chat::Statement> statements;

  template <typename AnyJson>
  Result<std::string> render(const AnyJson& variables) const {
    if (!variables.is_object()) {
      return make_error(ErrorCode::kInvalidArgument, "template variables: expected an object");
    }
    try {
      return chat::Interpreter(chat::Value::from_json(variables).dict()).render(statements);
    } catch (const chat::TemplateError& e) {
      return e.error;
    }
  }
};

ChatTemplate::ChatTemplate() : impl_(std::make_unique<Impl>()) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::parse(std::string source) {
  auto statements = chat::parse_template(source);
  if (!statements) return statements.error().in("chat template");
  std::shared_ptr<ChatTemplate> result(new ChatTemplate);
  result->impl_->statements = std::move(*statements);
  return std::shared_ptr<const ChatTemplate>(std::move(result));
}

Result<std::string> ChatTemplate::render(const Json& variables) const {
  return impl_->render(variables);
}

Result<std::string> ChatTemplate::render_ordered(const nlohmann::ordered_json& variables) const {
  return impl_->render(variables);
}

}  // namespace expertplex
