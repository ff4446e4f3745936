#include "serve/http_request.h"

#include <vector>

#include "gtest/gtest.h"

namespace tercio::serve {
namespace {

using State = HttpRequestParser::State;

constexpr char kPost[] = "POST /v1/x?a=b HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";

TEST(HttpRequest, ArrivesInAnyPieces) {
  const std::string bytes = kPost;
  for (size_t cut = 1; cut < bytes.size(); ++cut) {
    HttpRequestParser parser({});
    ASSERT_EQ(parser.Consume(bytes.substr(0, cut)), State::kNeedsMore) << cut;
    EXPECT_TRUE(parser.begun());
    ASSERT_EQ(parser.Consume(bytes.substr(cut)), State::kComplete) << cut;
    const HttpRequest request = parser.Take();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/x");
    EXPECT_EQ(request.headers.at("host"), "h");
    EXPECT_EQ(request.body, "hello");
    EXPECT_TRUE(request.keep_alive);
    EXPECT_FALSE(parser.begun());
  }
}

TEST(HttpRequest, SeveralFollowEachOther) {
  HttpRequestParser parser({});
  ASSERT_EQ(parser.Consume(std::string(kPost) + "GET / HTTP/1.1\r\nConnection: Close\r\n\r\n"),
            State::kComplete);
  EXPECT_EQ(parser.Take().body, "hello");
  ASSERT_EQ(parser.Consume(""), State::kComplete);
  const HttpRequest second = parser.Take();
  EXPECT_EQ(second.path, "/");
  EXPECT_FALSE(second.keep_alive);
}

TEST(HttpRequest, WhatIsAmbiguousOrTooLargeIsRefused) {
  struct Case {
    std::string bytes;
    int code;
  };
  const std::string post = "POST / HTTP/1.1\r\n";
  const std::vector<Case> cases = {
      {"GET /\r\n\r\n", 400},
      {"GET x HTTP/1.1\r\n\r\n", 400},
      {"G@T / HTTP/1.1\r\n\r\n", 400},
      {"GET / b HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\n\r\n", 505},
      {"GET / HTTP/1.0\r\n\r\n", 505},
      {"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nA: b\r\n folded: c\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nSpace : b\r\n\r\n", 400},
      {post + "\r\n", 411},
      {post + "Transfer-Encoding: chunked\r\n\r\n", 411},
      {post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 411},
      {post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\n", 400},
      {post + "Content-Length: -3\r\n\r\n", 400},
      {post + "Content-Length: +3\r\n\r\n", 400},
      {post + "Content-Length: 99999999999999999999\r\n\r\n", 400},
      {post + "Content-Length: 101\r\n\r\n", 413},
      {"GET / HTTP/1.1\r\nA: " + std::string(300, 'a'), 431},
  };
  for (const Case& wrong : cases) {
    HttpRequestParser parser({.header_bytes = 200, .body_bytes = 100});
    ASSERT_EQ(parser.Consume(wrong.bytes), State::kFailed) << wrong.bytes;
    EXPECT_EQ(parser.error().code, wrong.code) << wrong.bytes;
    EXPECT_EQ(parser.Consume("GET / HTTP/1.1\r\n\r\n"), State::kFailed);
  }
}

TEST(HttpRequest, ALongBodyWaitsForContinueOnce) {
  HttpRequestParser parser({});
  parser.Consume("POST / HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(parser.TakeWaitsForContinue());
  EXPECT_FALSE(parser.TakeWaitsForContinue());
  EXPECT_EQ(parser.Consume("ab"), State::kComplete);
}

}  // namespace
}  // namespace tercio::serve
