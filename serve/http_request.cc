#include "serve/http_request.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace tercio::serve {
namespace {

constexpr std::string_view kEndOfHead = "\r\n\r\n";

// The characters of names (RFC 9110, 5.6.2).
bool IsToken(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  for (const char c : text) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) &&
        kMarks.find(c) == std::string_view::npos) {
      return false;
    }
  }
  return !text.empty();
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool HasControlCharacters(std::string_view text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t') || byte == 0x7F) return true;
  }
  return false;
}

}  // namespace

HttpRequestParser::State HttpRequestParser::Fail(int code, std::string message) {
  error_ = {code, std::move(message)};
  return State::kFailed;
}

HttpRequestParser::State HttpRequestParser::Consume(std::string_view bytes) {
  if (error_.code != 0) return State::kFailed;
  buffer_.append(bytes);
  if (!head_.has_value()) {
    const size_t end = buffer_.find(kEndOfHead);
    if (end == std::string::npos ? buffer_.size() > limits_.header_bytes
                                 : end > limits_.header_bytes) {
      return Fail(431,
                  absl::StrCat("the headers are longer than ", limits_.header_bytes, " bytes"));
    }
    if (end == std::string::npos) return State::kNeedsMore;
    if (ParseHead(std::string_view(buffer_).substr(0, end)) == State::kFailed) {
      return State::kFailed;
    }
    buffer_.erase(0, end + kEndOfHead.size());
  }
  return buffer_.size() < body_bytes_ ? State::kNeedsMore : State::kComplete;
}

HttpRequestParser::State HttpRequestParser::ParseHead(std::string_view head) {
  head_.emplace();
  const size_t line_end = std::min(head.find("\r\n"), head.size());
  const std::string_view line = head.substr(0, line_end);
  const size_t method_end = line.find(' ');
  const size_t target_end = line.rfind(' ');
  if (method_end == std::string_view::npos || target_end <= method_end + 1) {
    return Fail(400, "the request line is not METHOD PATH HTTP/1.1");
  }
  head_->method = line.substr(0, method_end);
  const std::string_view target = line.substr(method_end + 1, target_end - method_end - 1);
  const std::string_view version = line.substr(target_end + 1);
  if (!IsToken(head_->method) || target.front() != '/' || HasControlCharacters(line) ||
      target.find(' ') != std::string_view::npos) {
    return Fail(400, "the request line is not METHOD PATH HTTP/1.1");
  }
  if (version != "HTTP/1.1") {
    return Fail(505, "the version of HTTP is not 1.1");
  }
  head_->path = target.substr(0, target.find('?'));
  head = head.substr(std::min(line_end + 2, head.size()));
  while (!head.empty()) {
    const size_t end = std::min(head.find("\r\n"), head.size());
    if (!ParseHeader(head.substr(0, end))) {
      return Fail(400, "a header is not NAME: VALUE, or one that decides lengths is there twice");
    }
    head = head.substr(std::min(end + 2, head.size()));
  }
  head_->keep_alive = absl::AsciiStrToLower(head_->headers["connection"]) != "close";
  return ReadLength();
}

bool HttpRequestParser::ParseHeader(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !IsToken(line.substr(0, colon))) return false;
  const std::string_view value = Trim(line.substr(colon + 1));
  if (HasControlCharacters(value)) return false;
  const std::string name = absl::AsciiStrToLower(std::string(line.substr(0, colon)));
  const bool is_new = head_->headers.emplace(name, value).second;
  return is_new || (name != "content-length" && name != "transfer-encoding" && name != "host" &&
                    name != "authorization");
}

HttpRequestParser::State HttpRequestParser::ReadLength() {
  const auto& headers = head_->headers;
  if (headers.contains("transfer-encoding")) {
    return Fail(411, "bodies in chunks are not read; send Content-Length");
  }
  body_bytes_ = 0;
  const auto length = headers.find("content-length");
  if (length == headers.end()) {
    if (head_->method == "GET" || head_->method == "HEAD") return State::kNeedsMore;
    return Fail(411, "Content-Length is missing");
  }
  const std::string& text = length->second;
  uint64_t bytes = 0;
  const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || !absl::SimpleAtoi(text, &bytes)) {
    return Fail(400, "Content-Length is not a number of bytes");
  }
  if (bytes > limits_.body_bytes) {
    return Fail(413, absl::StrCat("the body has ", bytes, " bytes, but this server reads at most ",
                                  limits_.body_bytes, "; --max-body sets its limit"));
  }
  body_bytes_ = static_cast<size_t>(bytes);
  const auto expect = headers.find("expect");
  waits_for_continue_ =
      expect != headers.end() && absl::AsciiStrToLower(expect->second) == "100-continue";
  return State::kNeedsMore;
}

bool HttpRequestParser::TakeWaitsForContinue() { return std::exchange(waits_for_continue_, false); }

HttpRequest HttpRequestParser::Take() {
  TERCIO_CHECK(head_.has_value());
  TERCIO_CHECK_GE(buffer_.size(), body_bytes_);
  HttpRequest request = *std::move(head_);
  request.body = buffer_.substr(0, body_bytes_);
  buffer_.erase(0, body_bytes_);
  head_.reset();
  body_bytes_ = 0;
  return request;
}

}  // namespace tercio::serve
