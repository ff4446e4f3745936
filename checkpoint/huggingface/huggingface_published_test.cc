// Widely used checkpoints in the form in which they are published
// (tests/huggingface/make_published.py): the logits are those of transformers, whatever the
// container, the names and the buffers; and what a job may start from, with which notes.
#include <filesystem>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/export.h"
#include "checkpoint/huggingface/import.h"
#include "checkpoint/huggingface/weights.h"
#include "checkpoint/reader.h"
#include "checkpoint/weight_source.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "plan/model_tensors.h"
#include "tests/huggingface/logits.h"
#include "tests/huggingface/published.h"

namespace tercio::checkpoint {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Json& Published() {
  static const Json* const forms =
      new Json(Json::parse(*ReadFile("tests/huggingface/fixtures/published.json")));
  return *forms;
}

std::map<std::string, std::string> ContentsOf(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const std::string& name : ListDirectory(directory)) {
    files[name] = *ReadFile(absl::StrCat(directory, "/", name));
  }
  return files;
}

class PublishedTest : public ::testing::Test {
 protected:
  // The form in a fresh directory.
  std::string Write(const Json& form, bool stream = false) {
    const std::string directory = Fresh();
    EXPECT_TRUE(MakeDirectories(directory).ok());
    WritePublished(form, stream, directory);
    return directory;
  }
  std::string Fresh() { return absl::StrCat(dir_.path(), "/", ++count_); }

  static double Error(const std::string& directory, const Json& form) {
    return LogitErrorOf(directory, form, form["context"].get<int64_t>());
  }
  std::string Import(const std::string& directory) {
    const std::string checkpoint = Fresh();
    const auto imported = ImportHuggingFace(directory, checkpoint);
    EXPECT_TRUE(imported.ok()) << imported.status();
    if (imported.ok()) notes_ = imported->notes;
    return checkpoint;
  }
  void ExpectFault(const std::string& directory, absl::StatusCode code, const std::string& what) {
    const auto model = HuggingFaceModel::Open(directory);
    EXPECT_EQ(model.status().code(), code) << model.status();
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(what));
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(directory));
  }

  TempDir dir_;
  int count_ = 0;
  std::vector<std::string> notes_;  // notes on the last import
};

constexpr auto kDamagedModel = absl::StatusCode::kDataLoss;
constexpr auto kRefusedModel = absl::StatusCode::kInvalidArgument;

TEST_F(PublishedTest, LogitsAreThoseOfTransformers) {
  ASSERT_GE(Published().size(), 15u);
  for (const auto& [name, form] : Published().items()) {
    std::vector<bool> streams;
    for (const Json& container : form["containers"]) streams.push_back(container == "stream");
    if (streams.empty()) streams.push_back(false);
    for (const bool stream : streams) {
      const std::string directory = Write(form, stream);
      EXPECT_LT(Error(directory, form), 1e-5) << name;
      const std::string checkpoint = Import(directory);
      EXPECT_LT(Error(checkpoint, form), 1e-5) << name;
      const std::string again = Fresh();
      const auto exported = ExportHuggingFace(checkpoint, again, {});
      ASSERT_TRUE(exported.ok()) << name << exported.status();
      EXPECT_LT(Error(again, form), 1e-5) << name;
      const bool torch = !form["containers"].empty();
      EXPECT_EQ(
          std::any_of(notes_.begin(), notes_.end(),
                      [](const auto& note) { return absl::StrContains(note, "safetensors"); }),
          torch)
          << name;
      if (!torch) {
        EXPECT_EQ(ContentsOf(again), ContentsOf(directory)) << name;
        continue;
      }
      for (const std::string& file : ListDirectory(again)) {
        EXPECT_TRUE(file == "config.json" || absl::EndsWith(file, ".safetensors") ||
                    file == kHuggingFaceIndex)
            << file;
      }
      // Another import of the export changes nothing.
      const std::string twice = Fresh();
      ASSERT_TRUE(ExportHuggingFace(Import(again), twice, {}).ok());
      EXPECT_EQ(ContentsOf(twice), ContentsOf(again)) << name;
    }
  }
}

// Weights keep their bits and dtypes; names are those that transformers writes today.
TEST_F(PublishedTest, FilesOfTorchBecomeSafetensors) {
  const Json& form = Published()["Llama-2-7b-hf.bin"];
  const std::string out = Fresh();
  ASSERT_TRUE(ExportHuggingFace(Import(Write(form)), out, {}).ok());
  EXPECT_THAT(ListDirectory(out),
              ElementsAre("config.json", "model-00001-of-00002.safetensors",
                          "model-00002-of-00002.safetensors", kHuggingFaceIndex));
  const auto model = HuggingFaceModel::Open(out);
  ASSERT_TRUE(model.ok()) << model.status();
  std::map<std::string, std::string> found;
  for (const WeightFile& file : (*model)->files()) {
    for (const StoredTensor& tensor : file.tensors) {
      EXPECT_EQ(tensor.dtype, "F16");
      found[tensor.name] = tensor.bytes;
    }
  }
  int weights = 0;
  for (const auto& [name, rows] : form["files"].items()) {
    for (const PublishedTensor& tensor : PublishedTensors(rows, 2)) {
      const bool buffer = absl::EndsWith(tensor.entry.name, "inv_freq");
      weights += !buffer;
      EXPECT_EQ(found.contains(tensor.entry.name), !buffer) << tensor.entry.name;
      EXPECT_TRUE(buffer || found[tensor.entry.name] == tensor.bytes) << tensor.entry.name;
    }
  }
  EXPECT_EQ(static_cast<int>(found.size()), weights);

  const std::string bert = Fresh();
  ASSERT_TRUE(
      ExportHuggingFace(Import(Write(Published()["bert-base-uncased.bin"], true)), bert, {}).ok());
  const auto renamed = HuggingFaceModel::Open(bert);
  ASSERT_TRUE(renamed.ok()) << renamed.status();
  for (const StoredTensor& tensor : (*renamed)->files().front().tensors) {
    EXPECT_FALSE(absl::EndsWith(tensor.name, "gamma") || absl::EndsWith(tensor.name, "beta"));
    EXPECT_THAT(tensor.name, Not(HasSubstr("decoder")));
  }
}

// The form with other rows in its files.
Json Changed(Json form, const std::function<void(Json&)>& change) {
  for (auto& [name, rows] : form["files"].items()) change(rows);
  return form;
}

void RemoveRows(Json& rows, const std::string& part) {
  Json kept = Json::array();
  for (Json& row : rows) {
    if (!absl::StrContains(row[0].get<std::string>(), part)) kept.push_back(row);
  }
  rows = kept;
}

TEST_F(PublishedTest, PrefixesMayBeThereOrNot) {
  for (const auto& [name, prefix, add] :
       {std::tuple("bert-base-uncased", "bert.", false), std::tuple("gpt2", "transformer.", true),
        std::tuple("Llama-3.2-1B", "model.", false)}) {
    const Json& form = Published()[name];
    const Json changed = Changed(form, [&](Json& rows) {
      for (Json& row : rows) {
        const auto tensor = row[0].get<std::string>();
        // The values follow from the old name.
        row[3] = tensor;
        if (add) row[0] = prefix + tensor;
        if (!add && absl::StartsWith(tensor, prefix)) row[0] = tensor.substr(strlen(prefix));
      }
    });
    EXPECT_LT(Error(Write(changed), form), 1e-5) << name;
  }
}

// A classifier starts from what was pretrained: its pooler is there, its head is new.
TEST_F(PublishedTest, HeadsOfOtherTasks) {
  const Json& bert = Published()["bert-base-uncased"];
  const std::string directory = Write(bert);
  const auto source = OpenWeightSource(directory, DigestCheck::kNone);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_TRUE(NotesAbout(**source, (*source)->model()).empty());
  v1::ModelSpec classifier = (*source)->model();
  classifier.set_labels(2);
  classifier.set_sentence_order(false);
  EXPECT_THAT(NotesAbout(**source, classifier),
              ElementsAre(HasSubstr("the model has no use for cls.predictions.bias, "),
                          "it has no classifier.weight, classifier.bias: a job that starts from it "
                          "initialises them"));
  classifier.set_from(directory);
  const auto notes = CheckInitialWeights(classifier, 40);
  ASSERT_TRUE(notes.ok()) << notes.status();
  EXPECT_THAT((*notes)[0], HasSubstr(absl::StrCat("model.from ", directory, ": ")));
  // The same from an import.
  const std::string imported = Import(directory);
  EXPECT_TRUE(notes_.empty());
  classifier.set_from(imported);
  EXPECT_TRUE(CheckInitialWeights(classifier, 40).ok());

  // Masked tokens only, and the pooler that its file holds all the same: a classifier reads it,
  // from an import too.
  const std::string masked =
      Write(Changed(bert, [](Json& rows) { RemoveRows(rows, "cls.seq_relationship"); }));
  for (const std::string& from : {masked, Import(masked)}) {
    const auto model = OpenWeightSource(from, DigestCheck::kNone);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_FALSE((*model)->model().sentence_order());
    EXPECT_TRUE((*model)->Has("pooler.weight"));
    EXPECT_TRUE((*model)->Has("head.bias"));
  }
  EXPECT_THAT(notes_,
              ElementsAre(HasSubstr(
                  "the model has no use for bert.pooler.dense.bias, bert.pooler.dense.weight")));
  const std::string again = Fresh();
  ASSERT_TRUE(ExportHuggingFace(Import(masked), again, {}).ok());
  EXPECT_EQ(ContentsOf(again), ContentsOf(masked));
}

TEST_F(PublishedTest, AClassifierWithoutItsHead) {
  Json form = Published()["bert-base-uncased"];
  form["config"]["architectures"] = {"BertForSequenceClassification"};
  form["config"]["id2label"] = {{"0", "bad"}, {"1", "good"}};
  const std::string directory = Write(form);
  const auto source = HuggingFaceModel::Open(directory);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->model().labels(), 2);
  EXPECT_FALSE((*source)->Has("classifier.weight"));
  const std::string imported = Import(directory);
  ASSERT_EQ(notes_.size(), 2u);
  EXPECT_THAT(notes_[0], HasSubstr("the model has no use for cls.predictions.bias"));
  EXPECT_THAT(notes_[1], HasSubstr("it has no classifier.weight, classifier.bias"));
  const auto reader = Reader::Open(imported, DigestCheck::kEveryByte);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->Has("pooler.weight"));
  EXPECT_FALSE((*reader)->Has("classifier.weight"));
  // It cannot be run, only trained.
  EXPECT_THAT(std::string(inference::EncoderModel::Load(directory, 1).status().message()),
              HasSubstr("has no tensor classifier.weight"));
}

// A head that Tercio does not know is left out, and comes back with the export.
TEST_F(PublishedTest, UnknownHeadsAreListed) {
  const struct {
    const char* form;
    const char* head;
  } cases[] = {{"gpt2", "score.weight"},
               {"Llama-3.2-1B", "score.weight"},
               {"bert-base-uncased", "qa_outputs.bias"},
               {"bert-base-uncased", "classifier.weight"}};
  for (const auto& item : cases) {
    const Json& form = Published()[item.form];
    const std::string directory = Write(Changed(form, [&](Json& rows) {
      rows.push_back({item.head, "F32", {3, 32}, nullptr});
    }));
    EXPECT_LT(Error(directory, form), 1e-5);
    const std::string out = Fresh();
    ASSERT_TRUE(ExportHuggingFace(Import(directory), out, {}).ok());
    EXPECT_THAT(notes_,
                ElementsAre(HasSubstr(absl::StrCat("the model has no use for ", item.head))));
    EXPECT_EQ(ContentsOf(out), ContentsOf(directory));
  }
  // In a file of torch, too.
  const std::string torch = Write(Changed(Published()["gpt2-xl"], [](Json& rows) {
    rows.push_back({"score.weight", "F32", {3, 32}, nullptr});
  }));
  const std::string out = Fresh();
  ASSERT_TRUE(ExportHuggingFace(Import(torch), out, {}).ok());
  EXPECT_THAT(ContentsOf(out)["model.safetensors"], HasSubstr("score.weight"));
}

// What says that the file is of another model.
TEST_F(PublishedTest, UnknownTensorsAreErrors) {
  const struct {
    const char* form;
    Json row;
    const char* what;
  } cases[] = {
      {"Llama-3.1-8B",
       {"model.layers.0.self_attn.q_proj.bias", "BF16", {32}, nullptr},
       "q_proj.bias"},
      {"Llama-3.1-8B", {"model.norm.bias", "BF16", {32}, nullptr}, "model.norm.bias"},
      {"gpt2", {"h.2.ln_1.weight", "F32", {32}, nullptr}, "h.2.ln_1.weight"},
      {"gpt2", {"h.0.ln_1.gamma", "F32", {32}, nullptr}, "appears twice"},
      {"gpt2", {"h.0.attn.c_attn.gamma", "F32", {32}, nullptr}, "c_attn.gamma does not belong"},
      {"bert-base-uncased",
       {"bert.encoder.ln.weight", "F32", {32}, nullptr},
       "bert.encoder.ln.weight"},
  };
  for (const auto& item : cases) {
    Json form = Published()[item.form];
    form["files"].begin()->push_back(item.row);
    ExpectFault(Write(form), kDamagedModel, item.what);
  }
  ExpectFault(Write(Changed(Published()["gpt2-medium"],
                            [](Json& rows) { RemoveRows(rows, "ln_f.weight"); })),
              kDamagedModel, "tensor transformer.ln_f.weight is missing");
  ExpectFault(Write(Changed(Published()["Meta-Llama-3-8B"],
                            [](Json& rows) { RemoveRows(rows, "lm_head"); })),
              kDamagedModel, "tensor lm_head.weight is missing");
}

TEST_F(PublishedTest, OnlyTheCopyOfATiedTensor) {
  // The copy has the values of the original, which is not there.
  const Json changed =
      Changed(Published()["distilgpt2"], [](Json& rows) { RemoveRows(rows, "wte.weight"); });
  EXPECT_LT(Error(Write(changed, true), Published()["distilgpt2"]), 1e-5);
  const std::string out = Fresh();
  ASSERT_TRUE(ExportHuggingFace(Import(Write(changed)), out, {}).ok());
  EXPECT_LT(Error(out, Published()["distilgpt2"]), 1e-5);
}

TEST_F(PublishedTest, IndicesOfTorchAreChecked) {
  const Json& form = Published()["Llama-2-7b-hf.bin"];
  const auto change = [&](const std::function<void(Json&)>& edit) {
    const std::string directory = Write(form);
    const std::string path = absl::StrCat(directory, "/", kTorchIndex);
    Json index = Json::parse(*ReadFile(path));
    edit(index["weight_map"]);
    PutFile(path, index.dump());
    return directory;
  };
  // A buffer that the index forgets, or that the files lack, is no fault.
  const std::string buffer = "model.layers.0.self_attn.rotary_emb.inv_freq";
  EXPECT_TRUE(HuggingFaceModel::Open(change([&](Json& map) { map.erase(buffer); })).ok());
  EXPECT_TRUE(HuggingFaceModel::Open(change([&](Json& map) {
                map["rotary_emb.inv_freq"] = map[buffer];
              })).ok());
  ExpectFault(change([](Json& map) { map.erase("model.norm.weight"); }), kDamagedModel,
              "tensor model.norm.weight of pytorch_model-00001-of-00002.bin is not in the index");
  ExpectFault(change([](Json& map) { map["model.norm.weight"] = "../x.bin"; }), kDamagedModel,
              "is not in a file of this directory");
  const std::string missing = Write(form);
  ASSERT_TRUE(RemoveTree(missing + "/pytorch_model-00002-of-00002.bin").ok());
  ExpectFault(missing, absl::StatusCode::kNotFound, "pytorch_model-00002-of-00002.bin");
}

TEST_F(PublishedTest, SafetensorsArePreferred) {
  const Json& form = Published()["bert-base-uncased"];
  const std::string directory = Write(form);
  PutFile(directory + "/pytorch_model.bin", "not read");
  EXPECT_LT(Error(directory, form), 1e-5);
}

// Tensors of torch that are views with strides of their own.
TEST_F(PublishedTest, TensorsOfTorchMayHaveStrides) {
  const Json& form = Published()["gpt2-xl"];
  const std::string directory = Write(form);
  const auto rows = PublishedTensors(form["files"]["pytorch_model.bin"], 2);
  // Each matrix is stored with its columns one after the other; the mask repeats one number.
  PickleBytes pickle;
  std::vector<StreamStorage> storages;
  pickle.Raw("}(");
  for (const PublishedTensor& tensor : rows) {
    std::string bytes = tensor.bytes;
    PickleBytes::View view = {0, tensor.entry.shape, {1}};
    if (tensor.entry.shape.size() == 2) {
      const int64_t height = tensor.entry.shape[0], width = tensor.entry.shape[1];
      view.strides = {1, height};
      for (int64_t row = 0; row < height; ++row) {
        for (int64_t column = 0; column < width; ++column) {
          bytes.replace(static_cast<size_t>(4 * (column * height + row)), 4, tensor.bytes,
                        static_cast<size_t>(4 * (row * width + column)), 4);
        }
      }
    } else if (tensor.entry.shape.size() == 4) {
      bytes.resize(4);
      view.strides = {0, 0, 0, 0};
    }
    const std::string key = absl::StrCat(storages.size());
    const auto elements = static_cast<int64_t>(bytes.size() / 4);
    pickle.Text(tensor.entry.name).Tensor("FloatStorage", key, elements, view);
    storages.push_back({key, elements, bytes});
  }
  // The head of another task, too, which is not kept then.
  pickle.Text("score.weight")
      .Tensor("FloatStorage", "0", storages[0].elements, {0, {900, 900}, {0, 0}});
  PutFile(directory + "/pytorch_model.bin", StreamBytes(pickle.Raw("u").Finish(), storages));
  EXPECT_LT(Error(directory, form), 1e-5);
  const std::string imported = Import(directory);
  EXPECT_LT(Error(imported, form), 1e-5);
  const std::string out = Fresh();
  ASSERT_TRUE(ExportHuggingFace(imported, out, {}).ok());
  EXPECT_THAT(ContentsOf(out)["model.safetensors"], Not(HasSubstr("score.weight")));
  // A weight of repeated elements has no bytes of its own.
  const std::string repeated = Write(Published()["gpt2-xl"]);
  PickleBytes ones;
  ones.Raw("}(");
  for (const PublishedTensor& tensor : rows) {
    ones.Text(tensor.entry.name)
        .Tensor("FloatStorage", "0", 1,
                {0, tensor.entry.shape, std::vector<int64_t>(tensor.entry.shape.size(), 0)});
  }
  PutFile(repeated + "/pytorch_model.bin", StreamBytes(ones.Raw("u").Finish(), {{"0", 1, "1234"}}));
  ExpectFault(repeated, kRefusedModel, "wte.weight repeats its elements, which is not supported");
}

TEST_F(PublishedTest, PicklesAreNotTrusted) {
  const std::string directory = Write(Published()["gpt2-xl"]);
  const std::string file = directory + "/pytorch_model.bin";
  const std::string good = *ReadFile(file);
  PutFile(file, ZipBytes()
                    .Add({"archive/data.pkl",
                          PickleBytes().Global("os", "system").Text("x").Raw("\x85R").Finish()})
                    .Finish());
  ExpectFault(directory, kRefusedModel,
              "pytorch_model.bin: byte 2 of the pickle: it names os.system");
  PutFile(file, good.substr(0, good.size() / 2));
  ExpectFault(directory, kDamagedModel, "pytorch_model.bin: the archive is truncated");
  PutFile(file, StreamBytes(PickleBytes().Raw("]").Finish(), {}));
  ExpectFault(directory, kRefusedModel, "holds no map of tensors");
  PutFile(file, StreamBytes(PickleBytes().Raw("}").Text("model").Raw("}s").Finish(), {}));
  ExpectFault(directory, kRefusedModel, "model is no tensor");
  PutFile(file, StreamBytes(PickleBytes().Raw("}K\1K\1s").Finish(), {}));
  ExpectFault(directory, kRefusedModel, "a key is no tensor");
}

TEST_F(PublishedTest, OtherArchitecturesAreNamed) {
  for (const char* kind : {"mt5", "mixtral", "bloom", "roberta", "distilbert", "qwen2_moe"}) {
    Json form = Published()["gpt2"];
    form["config"]["model_type"] = kind;
    ExpectFault(
        Write(form), kRefusedModel,
        absl::StrCat(
            "model_type: \"", kind,
            "\" (supported: gpt2, llama, bert, megatron-bert, opt, gptj, gpt_neox, phi, phi3, "
            "qwen2, qwen3, mistral, gemma2, t5) is not supported"));
  }
}

TEST_F(PublishedTest, NumbersOf64BitsAreRounded) {
  const Json& form = Published()["TinyLlama-1.1B.bin"];
  const std::string directory = Write(form);
  std::vector<PublishedTensor> tensors = PublishedTensors(form["files"]["pytorch_model.bin"], 2);
  std::vector<TensorEntry> entries;
  std::string bytes;
  for (PublishedTensor& tensor : tensors) {
    std::vector<float> values(tensor.bytes.size() / 4);
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    std::string wide(values.size() * 8, '\0');
    NarrowFloats(FloatFormat::kF64, values.data(), static_cast<int64_t>(values.size()),
                 wide.data());
    tensor.entry.dtype = "F64";
    entries.push_back(tensor.entry);
    bytes += wide;
  }
  PutFile(directory + "/model.safetensors", SafetensorsHeader(&entries, "pt") + bytes);
  EXPECT_LT(Error(directory, form), 1e-5);
  const std::string imported = Import(directory);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("numbers of 64 bits")));
  const std::string out = Fresh();
  ASSERT_TRUE(ExportHuggingFace(imported, out, {}).ok());
  EXPECT_EQ(ContentsOf(out)["model.safetensors"], ContentsOf(directory)["model.safetensors"]);
}

TEST_F(PublishedTest, ATokenizerIsKeptWithTheImport) {
  const std::string directory = Write(Published()["gpt2"]);
  ImportOptions options;
  options.tokenizer_json = R"({"kind":"bytes","vocab_size":256})";
  const std::string imported = Fresh();
  ASSERT_TRUE(ImportHuggingFace(directory, imported, options).ok());
  const auto source = OpenWeightSource(imported, DigestCheck::kEveryByte);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(*(*source)->TokenizerJson(), options.tokenizer_json);
  // It is no file of the directory.
  const std::string out = Fresh();
  ASSERT_TRUE(ExportHuggingFace(imported, out, {}).ok());
  EXPECT_EQ(ContentsOf(out), ContentsOf(directory));
  EXPECT_EQ(OpenWeightSource(Import(directory), DigestCheck::kNone)
                ->get()
                ->TokenizerJson()
                .status()
                .code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tercio::checkpoint
