#include "plan/names.h"

#include <set>

#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"

namespace tercio::plan {
namespace {

template <typename E>
void ExpectRoundTrip() {
  const google::protobuf::EnumDescriptor* set = google::protobuf::GetEnumDescriptor<E>();
  SCOPED_TRACE(set->full_name());
  EXPECT_EQ(WordsOfEnum(set->full_name()).data(), WordsOf<E>().data());
  EXPECT_EQ(NamesOf<E>().size() + 1, static_cast<size_t>(set->value_count()));
  for (int i = 0; i < set->value_count(); ++i) {
    const E value = static_cast<E>(set->value(i)->number());
    EXPECT_EQ(IsNamed(value), set->value(i)->number() != 0) << set->value(i)->name();
    if (!IsNamed(value)) continue;
    EXPECT_EQ(TextOf(value), NameOf(value));
    EXPECT_TRUE(Named<E>(NameOf(value)) == value) << NameOf(value);
  }
  EXPECT_FALSE(IsNamed(static_cast<E>(1000)));
  EXPECT_FALSE(Named<E>("").has_value());
  EXPECT_FALSE(Named<E>("no such word").has_value());
}

TEST(Names, OfEveryEnumeratorThereIsOneWord) {
  const google::protobuf::FileDescriptor* file = v1::JobSpec::descriptor()->file();
  ASSERT_GT(file->enum_type_count(), 0);
  for (int i = 0; i < file->enum_type_count(); ++i) {
    const google::protobuf::EnumDescriptor* set = file->enum_type(i);
    SCOPED_TRACE(set->full_name());
    std::set<std::string_view> texts;
    std::set<int> values;
    for (const Word& word : WordsOfEnum(set->full_name())) {
      EXPECT_FALSE(word.text.empty());
      EXPECT_TRUE(texts.insert(word.text).second) << word.text;
      EXPECT_TRUE(values.insert(word.value).second) << word.text;
      EXPECT_NE(set->FindValueByNumber(word.value), nullptr) << word.text;
    }
    EXPECT_FALSE(values.contains(0)) << "the absent word";
    EXPECT_EQ(values.size() + 1, static_cast<size_t>(set->value_count()));
  }
  EXPECT_TRUE(WordsOfEnum("tercio.v1.NoSuchEnum").empty());
}

TEST(Names, ReadBackAsTheSameEnumerator) {
  ExpectRoundTrip<v1::Architecture>();
  ExpectRoundTrip<v1::Activation>();
  ExpectRoundTrip<v1::NormPlacement>();
  ExpectRoundTrip<v1::OptimizerKind>();
  ExpectRoundTrip<v1::LearningRateSchedule>();
  ExpectRoundTrip<v1::Precision>();
  ExpectRoundTrip<v1::Reproducibility>();
  ExpectRoundTrip<v1::PipelineSchedule>();
  ExpectRoundTrip<v1::Recompute>();
  ExpectRoundTrip<v1::DeviceKind>();
  ExpectRoundTrip<v1::Collectives>();
  ExpectRoundTrip<v1::OnNan>();
  ExpectRoundTrip<v1::StragglerPolicy>();
  ExpectRoundTrip<v1::OnSpike>();
  ExpectRoundTrip<v1::QualityMetric>();
}

TEST(Names, AreListedInTheOrderOfTheirTable) {
  EXPECT_EQ(NamesOf<v1::OnSpike>(),
            (std::vector<std::string>{"off", "report", "skip", "rollback"}));
}

}  // namespace
}  // namespace tercio::plan
