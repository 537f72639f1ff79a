// GenerationCall: one HTTP request that generates: its choices in the engine and the answer that
// grows from their updates, streamed or whole. If the client goes away, or one choice fails, what
// still runs is cancelled.
//
// A stream's head is sent with the first token, so that everything that fails before is answered
// with its own status, and so that a client's time to first event is its time to first token.
//
// Thread rules: io thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/answer_format.h"
#include "api/http_types.h"
#include "api/prepare.h"
#include "serving/engine.h"

namespace expertplex {

class GenerationCall : public std::enable_shared_from_this<GenerationCall> {
 public:
  // Submits every choice, all or none, and answers the exchange, at once if that fails. Choice i of
  // prompt p has index p * n + i, and the seed (if any) of the request plus i. `created` in unix
  // seconds.
  static void start(Engine& engine, std::shared_ptr<IoLoop> loop,
                    std::shared_ptr<Exchange> exchange, PreparedRequest request,
                    const std::string& model, int64_t created);

 private:
  struct Choice {
    RequestId id;
    std::string text;  // of answers that are not streamed
    int completion_tokens = 0;
    bool begun = false;
    FinishReason finish = FinishReason::kNone;
  };

  GenerationCall(Engine& engine, std::shared_ptr<Exchange> exchange, PreparedRequest request,
                 const std::string& model, int64_t created);

  void submit_all(const std::shared_ptr<IoLoop>& loop);
  const PreparedPrompt& prompt_of(size_t choice) const;
  void on_update(size_t index, GenerationUpdate update);
  void stream(size_t index, const GenerationUpdate& update);
  void answer_whole();
  void fail(const ApiError& error);
  void cancel_unfinished();
  Usage usage() const;

  Engine& engine_;
  const std::shared_ptr<Exchange> exchange_;
  PreparedRequest request_;
  const AnswerFormat format_;
  std::vector<Choice> choices_;
  size_t choice_count_ = 0;
  size_t finished_count_ = 0;
  bool streaming_ = false;  // the head has been sent
  bool done_ = false;       // answered, failed or abandoned: later updates are ignored
};

}  // namespace expertplex
