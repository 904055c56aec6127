"""The `.onnx` models of packages: rows of the catalogue, with the usual shapes of open ones."""

from typing import Literal, NamedTuple

Kind = Literal["picture", "audio", "features"]


class OnnxRow(NamedTuple):
    """A model. shapes: the usual shapes of inputs whose dimensions the file leaves open."""

    name: str
    member: str
    sha256: str
    description: str
    shapes: dict[str, tuple[int, ...]]


Package = tuple[str, str, str, Kind, str, tuple[OnnxRow, ...]]  # name, version, licence, kind, folder, models
PACKAGES: tuple[Package, ...] = (
    ("magika", "1.0.3", "Apache-2.0", "features", "magika/models/standard_v3_3/", (
        OnnxRow("magika", "model.onnx",
                "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
                "file type (214 types) from 2,048 bytes of a file, int32 input",
                {"bytes": (1, 2048)}),
    )),
    ("rapidocr-onnxruntime", "1.4.4", "Apache-2.0", "picture", "rapidocr_onnxruntime/models/", (
        OnnxRow("ocr_detect", "ch_PP-OCRv4_det_infer.onnx",
                "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
                "position of text in a picture, sides of multiples of 32",
                {"x": (1, 3, 320, 320)}),
        OnnxRow("ocr_recognise", "ch_PP-OCRv4_rec_infer.onnx",
                "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
                "Chinese and Latin text in a line of 48 pixels",
                {"x": (1, 3, 48, 320)}),
        OnnxRow("ocr_orientation", "ch_ppocr_mobile_v2.0_cls_infer.onnx",
                "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
                "whether a line of text is upside down",
                {"x": (1, 3, 48, 192)}),
    )),
    ("silero-vad", "6.2.3", "MIT", "audio", "silero_vad/data/", (
        OnnxRow("silero_vad", "silero_vad.onnx",
                "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
                "voice in 512 samples at 16 kHz or 256 at 8 kHz, either by an If",
                {"input": (1, 576), "state": (2, 1, 128)}),
        OnnxRow("silero_vad_16k", "silero_vad_16k_op15.onnx",
                "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
                "voice in 512 samples at 16 kHz after 64 earlier ones",
                {"input": (1, 576)}),
        OnnxRow("silero_vad_sequence", "silero_vad_16k_sequence.onnx",
                "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
                "voice in windows of 576 samples, several at once",
                {"input": (8, 576)}),
        OnnxRow("silero_vad_half", "silero_vad_half.onnx",
                "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
                "voice in 512 samples at 16 kHz, smaller weights",
                {"input": (1, 576)}),
        OnnxRow("silero_vad_ifless", "silero_vad_op18_ifless.onnx",
                "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
                "voice at 16 or 8 kHz, one If with the cell written out",
                {"input": (1, 576)}),
        OnnxRow("silero_vad_fixed", "silero_vad_openvino_16k.onnx",
                "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
                "voice in 512 samples at 16 kHz, fixed shapes",
                {}),
    )),
    ("basic-pitch", "0.4.0", "Apache-2.0", "audio", "basic_pitch/saved_models/icassp_2022/", (
        OnnxRow("basic_pitch_onnx", "nmp.onnx",
                "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
                "notes and pitches in 2 s of sound at 22050 Hz, the .onnx file of basic_pitch",
                {}),
    )),
    ("ddddocr", "1.6.1", "MIT", "picture", "ddddocr/", (
        OnnxRow("captcha_read", "common.onnx",
                "33b5cd351ee94e73a6bf8fa18c415ed8b819b3ffd342e267c30d8ad8334e34e8",
                "characters in a grey picture 64 pixels high, LSTM",
                {"input1": (1, 1, 64, 160)}),
        OnnxRow("captcha_read_old", "common_old.onnx",
                "b8f2ad9cbc1f2e3922a6cb9459e30824e7e2467f3fb4fd61420640e34ea0bf68",
                "the same, quantised at execution (ConvInteger)",
                {"input1": (1, 1, 64, 160)}),
        OnnxRow("captcha_detect", "common_det.onnx",
                "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
                "position of characters, 416x416",
                {}),
    )),
    ("speechmos", "0.0.1.1", "MIT", "audio", "speechmos/", (
        OnnxRow("dnsmos", "dnsmos_models/sig_bak_ovr.onnx",
                "269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd",
                "quality of speech, 9 s at 16 kHz",
                {}),
        OnnxRow("dnsmos_personal", "pdnsmos_models/sig_bak_ovr.onnx",
                "9e3a197449ca2177f0997afec3bd6b890117ce2f17b89d6eea7fa0d47272c81c",
                "quality of speech with other speakers",
                {}),
        OnnxRow("dnsmos_p808", "dnsmos_models/model_v8.onnx",
                "9246480c58567bc6affd4200938e77eef49468c8bc7ed3776d109c07456f6e91",
                "quality of speech, 900 spectra",
                {}),
        OnnxRow("dnsmos_signal", "dnsmos_models/sig.onnx",
                "d2fbdb293bc2366dfbae2b7477c490f981d24a8b4405efd3c11787569c6549d7",
                "quality of the speech signal, 901 spectra",
                {}),
        OnnxRow("dnsmos_background", "dnsmos_models/bak_ovr.onnx",
                "5f335c90994618150192a656a474bcf8a9cbcedbc47965494ba8da79605d1308",
                "loudness of the background, 901 spectra",
                {}),
        OnnxRow("plcmos", "plcmos_models/plcmos_v2.onnx",
                "c0ad3fc64ef9682b4749c0e96636b41c73b4b30bd123b9348feea06a96895286",
                "quality of packet loss concealment, GRU",
                {"degraded_audio": (1, 1, 50, 257)}),
        OnnxRow("aecmos_16k", "aecmos_models/Run_1663915512_Stage_0.onnx",
                "f53122f43cb7e5b77ec797e85c8b997cfc2aac8220857c709226d876de8c0a99",
                "quality of echo cancellation at 16 kHz, opset 9, GRU",
                {"input": (1, 3, 40, 160)}),
        OnnxRow("aecmos_16k_scenario", "aecmos_models/Run_1663829550_Stage_0.onnx",
                "b517d8d9ca2f91ea55d15f605a15917c19be5d832868fe115c7c5bc48986dae1",
                "the same with the scenario as an input, opset 9, GRU",
                {"input": (1, 3, 40, 160)}),
        OnnxRow("aecmos_48k", "aecmos_models/Run_1668423760_Stage_0.onnx",
                "b57bc007046d7230008ad2b802cb378f998ff3d96be074389a4d07533b7d4aaf",
                "quality of echo cancellation at 48 kHz, opset 9, GRU",
                {"input": (1, 3, 40, 160)}),
    )),
)  # fmt: skip
