#include "serve/openai.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tokenizer/tokenizer.h"

namespace tercio::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

GenerationRequest Parsed(std::variant<GenerationRequest, ApiError> parsed) {
  const auto* error = std::get_if<ApiError>(&parsed);
  EXPECT_EQ(error, nullptr) << error->message;
  return std::get<GenerationRequest>(std::move(parsed));
}

TEST(Requests, ACompletionHasOneOfFourPrompts) {
  const auto text = Parsed(ParseCompletion(R"({"prompt":"a"})"));
  ASSERT_EQ(text.prompts.size(), 1u);
  EXPECT_EQ(text.prompts[0].text, "a");
  EXPECT_FALSE(text.max_tokens.has_value());
  const auto texts = Parsed(ParseCompletion(R"({"prompt":["a","b"]})"));
  ASSERT_EQ(texts.prompts.size(), 2u);
  EXPECT_EQ(texts.prompts[1].text, "b");
  const auto ids = Parsed(ParseCompletion(R"({"prompt":[1,2]})"));
  ASSERT_EQ(ids.prompts.size(), 1u);
  EXPECT_THAT(ids.prompts[0].ids, ElementsAre(1, 2));
  const auto lists = Parsed(ParseCompletion(R"({"prompt":[[1,2],[3]]})"));
  ASSERT_EQ(lists.prompts.size(), 2u);
  EXPECT_THAT(lists.prompts[1].ids, ElementsAre(3));
}

TEST(Requests, ACompletionHasItsParameters) {
  const auto request = Parsed(ParseCompletion(
      R"({"model":"m","prompt":"a","max_tokens":7,"temperature":0,"top_p":0.5,"top_k":3,"seed":-1,
          "stop":"x","logprobs":2,"echo":true,"n":1,"best_of":1,"user":"u","suffix":null,
          "presence_penalty":0.0,"ignore_eos":true,"logit_bias":{}})"));
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.temperature, 0);
  EXPECT_EQ(request.top_p, 0.5);
  EXPECT_EQ(request.top_k, 3);
  EXPECT_EQ(request.seed, ~uint64_t{0});
  EXPECT_THAT(request.stop, ElementsAre("x"));
  EXPECT_EQ(request.log_probabilities, 2);
  EXPECT_TRUE(request.echo);
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_FALSE(request.stream);
}

TEST(Requests, AChatHasMessages) {
  const auto request = Parsed(ParseChat(
      R"({"messages":[{"role":"developer","content":"s"},
                      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],
          "max_completion_tokens":5,"logprobs":true,"top_logprobs":3,"stream":true,
          "stream_options":{"include_usage":true},"stop":["x","y"]})"));
  ASSERT_EQ(request.messages.size(), 2u);
  EXPECT_EQ(request.messages[0].role, "system");
  EXPECT_EQ(request.messages[1].content, "ab");
  EXPECT_EQ(request.max_tokens, 5);
  EXPECT_EQ(request.log_probabilities, 3);
  EXPECT_TRUE(request.stream && request.stream_usage);
  EXPECT_THAT(request.stop, ElementsAre("x", "y"));
}

struct Fault {
  std::string body;
  std::string parameter;
};

TEST(Requests, FaultsNameTheParameter) {
  for (const Fault& fault :
       std::vector<Fault>{{"{", ""},
                          {"[1]", ""},
                          {"{}", "prompt"},
                          {R"({"prompt":[]})", "prompt"},
                          {R"({"prompt":[-1]})", "prompt"},
                          {R"({"prompt":[4294967296]})", "prompt"},
                          {R"({"prompt":[[]]})", "prompt"},
                          {R"({"prompt":[["a"]]})", "prompt"},
                          {R"({"prompt":{"a":1}})", "prompt"},
                          {R"({"prompt":"a","max_tokens":-1})", "max_tokens"},
                          {R"({"prompt":"a","max_tokens":1.5})", "max_tokens"},
                          {R"({"prompt":"a","max_tokens":1e300})", "max_tokens"},
                          {R"({"prompt":"a","temperature":-1})", "temperature"},
                          {R"({"prompt":"a","temperature":"hot"})", "temperature"},
                          {R"({"prompt":"a","top_p":1.5})", "top_p"},
                          {R"({"prompt":"a","seed":0.5})", "seed"},
                          {R"({"prompt":"a","stop":[""]})", "stop"},
                          {R"({"prompt":"a","stop":[1]})", "stop"},
                          {R"({"prompt":"a","stream":1})", "stream"},
                          {R"({"prompt":"a","stream_options":{}})", "stream_options"},
                          {R"({"prompt":"a","logprobs":21})", "logprobs"},
                          {R"({"prompt":"a","echo":true,"stream":true})", "echo"},
                          {R"({"prompt":"a","n":2})", "n"},
                          {R"({"prompt":"a","presence_penalty":0.5})", "presence_penalty"},
                          {R"({"prompt":"a","logit_bias":{"1":2}})", "logit_bias"},
                          {R"({"prompt":"a","suffix":"b"})", "suffix"},
                          {R"({"prompt":"a","model":1})", "model"},
                          {R"({"prompt":"a","max_token":1})", "max_token"}}) {
    const auto parsed = ParseCompletion(fault.body);
    const auto* error = std::get_if<ApiError>(&parsed);
    ASSERT_NE(error, nullptr) << fault.body;
    EXPECT_EQ(error->status, 400);
    EXPECT_EQ(error->parameter, fault.parameter) << fault.body;
    EXPECT_THAT(error->message, HasSubstr(fault.parameter));
  }
  for (const Fault& fault : std::vector<Fault>{
           {"{}", "messages"},
           {R"({"messages":[]})", "messages"},
           {R"({"messages":[{"content":"a"}]})", "messages[0].role"},
           {R"({"messages":[{"role":"tool","content":"a"}]})", "messages[0].role"},
           {R"({"messages":[{"role":"user"}]})", "messages[0].content"},
           {R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})",
            "messages[0].content"},
           {R"({"messages":[{"role":"user","content":"a"}],"top_logprobs":1})", "top_logprobs"},
           {R"({"messages":[{"role":"user","content":"a"}],"tools":[{}]})", "tools"},
           {R"({"messages":[{"role":"user","content":"a"}],"prompt":"a"})", "prompt"}}) {
    const auto parsed = ParseChat(fault.body);
    const auto* error = std::get_if<ApiError>(&parsed);
    ASSERT_NE(error, nullptr) << fault.body;
    EXPECT_EQ(error->parameter, fault.parameter) << fault.body;
  }
}

Choice TwoTokens() {
  Choice choice;
  choice.text = "a\xE2\x82\xAC";
  choice.tokens = {
      {.text = "a\xE2\x82\xAC"},
      {.text = "\xE2\x82", .log_probability = -0.5, .likeliest = {{"b", -0.25}, {"b", -2.0}}}};
  choice.finish_reason = "length";
  return choice;
}

TEST(Answers, ACompletionHasListsOfLogProbabilities) {
  const AnswerHead head = {.id = "cmpl-1", .created = 5, .model = "m", .log_probabilities = true};
  const Json json = Json::parse(AnswerBody(head, {TwoTokens()}, {3, 2}));
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["usage"]["total_tokens"], 5);
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], "a\xE2\x82\xAC");
  EXPECT_EQ(choice["finish_reason"], "length");
  const Json& scores = choice["logprobs"];
  EXPECT_EQ(scores["tokens"][1], "bytes:\\xe2\\x82");
  EXPECT_EQ(scores["token_logprobs"], Json::parse("[null,-0.5]"));
  // The likelier one of equal texts, and the token itself.
  EXPECT_EQ(scores["top_logprobs"][1], Json::parse(R"({"b":-0.25,"bytes:\\xe2\\x82":-0.5})"));
  EXPECT_EQ(scores["text_offset"], Json::parse("[0,2]"));
}

TEST(Answers, AChatHasAMessageAndChunksHaveDeltas) {
  const AnswerHead head = {
      .chat = true, .id = "c", .created = 5, .model = "m", .log_probabilities = true};
  const Json json = Json::parse(AnswerBody(head, {TwoTokens()}, {3, 2}));
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["choices"][0]["message"]["role"], "assistant");
  const Json& token = json["choices"][0]["logprobs"]["content"][1];
  EXPECT_EQ(token["bytes"], Json::parse("[226,130]"));
  EXPECT_EQ(token["top_logprobs"][0]["logprob"], -0.25);

  const std::string event = ChunkEvent(head, TwoTokens(), /*first=*/true);
  ASSERT_EQ(event.substr(0, 6), "data: ");
  ASSERT_EQ(event.substr(event.size() - 2), "\n\n");
  const Json chunk = Json::parse(event.substr(6));
  EXPECT_EQ(chunk["object"], "chat.completion.chunk");
  EXPECT_EQ(chunk["choices"][0]["delta"]["role"], "assistant");
  const Json later = Json::parse(ChunkEvent(head, TwoTokens(), false).substr(6));
  EXPECT_FALSE(later["choices"][0]["delta"].contains("role"));
}

TEST(Answers, ErrorsHaveOpenAisForm) {
  const Json json = Json::parse(ErrorBody({.message = "bad \xFF", .parameter = "n"}));
  EXPECT_EQ(json["error"]["message"], "bad \xEF\xBF\xBD");
  EXPECT_EQ(json["error"]["param"], "n");
  EXPECT_TRUE(json["error"]["code"].is_null());
  EXPECT_EQ(json["error"]["type"], "invalid_request_error");
}

TEST(ChatFormats, RenderMessages) {
  const std::vector<ChatMessage> messages = {{"system", "s"}, {"user", "hi"}};
  const tokenizer::Tokenizer bytes = tokenizer::Tokenizer::Bytes();
  const auto text = [&](const std::string& name, const std::vector<ChatMessage>& given) {
    const auto ids = (*ChatFormatNamed(name, bytes))->Prompt(given);
    return ids.ok() ? *bytes.Decode(*ids) : std::string(ids.status().message());
  };
  EXPECT_EQ(text("chatml", messages),
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(text("plain", messages), "System: s\nUser: hi\nAssistant:");
  EXPECT_EQ(text("zephyr", messages), "<|system|>\ns</s>\n<|user|>\nhi</s>\n<|assistant|>\n");
  EXPECT_THAT(text("chatml", {{"assistant", "hi"}}), HasSubstr("begins with the user"));
  EXPECT_THAT(text("chatml", {{"user", "hi"}, {"assistant", "hi"}}),
              HasSubstr("must be the user's"));
  EXPECT_THAT(std::string(ChatFormatNamed("x", bytes).status().message()),
              HasSubstr("mistral, plain"));
  for (const auto& [name, end] : {std::pair("chatml", "<|im_end|>"),
                                  {"llama3", "<|eot_id|>"},
                                  {"zephyr", "</s>"},
                                  {"gemma", "<end_of_turn>"}}) {
    EXPECT_THAT((*ChatFormatNamed(name, bytes))->stop_words(), ::testing::ElementsAre(end));
  }
}

}  // namespace
}  // namespace tercio::serve
