"""A vendor extension with its driver: `com.example.fourier` has a complex type, FFT and ABSOLUTE.

Try it: python examples/my_extension.py. `.tflite` files may have an operator `Spectrum` that is made of both:
nnhal run model.tflite --driver examples/my_extension.py
"""

import numpy as np

import nnhal
from nnhal.base.extensions import ExtensionType, register_extension
from nnhal.driver import CONSTANTS, V1_2, Capabilities, Device, DeviceType, Prepared, dtype_of, each_operation
from nnhal.ops.schema import F32, Form, Op, T, arg, out, register

NAME = "com.example.fourier"
FOURIER = register_extension(NAME, [ExtensionType("TENSOR_COMPLEX64", "<c8")], ["FFT", "ABSOLUTE"])
COMPLEX = FOURIER.type("TENSOR_COMPLEX64")
SIGNAL, SPECTRUM = arg("input", T, "batch length"), "batch length"

register(
    Op(
        f"{NAME}.FFT",
        {F32: V1_2},
        (Form(SIGNAL),),
        (out("output", {COMPLEX: V1_2}, SPECTRUM),),
        lambda a, x: np.fft.fft(x).astype(np.complex64),
        doc="The discrete Fourier transform of each row.",
    ),
    Op(
        f"{NAME}.ABSOLUTE",
        {COMPLEX: V1_2},
        (Form(SIGNAL),),
        (out("output", {F32: V1_2}, SPECTRUM),),
        lambda a, x: np.abs(x),
        doc="Magnitudes.",
    ),
)


def spectrum(t):
    """`Spectrum`: magnitudes, multiplied by the option `scale` of its flexbuffer."""
    scale = t.flexbuffer().get("scale", 1.0)
    t.require(isinstance(scale, int | float), f"scale is {scale!r}, must be a number")
    magnitudes = t.make(f"{NAME}.ABSOLUTE", t.make(f"{NAME}.FFT", t.x(0), like=COMPLEX), like=F32)
    t.give("MUL", magnitudes, t.scalar(scale, magnitudes), activation=0)


nnhal.register_custom_operator("Spectrum", spectrum)

KERNELS = {FOURIER.operation("FFT"): np.fft.fft, FOURIER.operation("ABSOLUTE"): np.abs}


class Transformer(Prepared):
    def __init__(self, model):
        self.main = model.main
        self.constants = {i: model.constant(o) for i, o in enumerate(model.main.operands) if o.lifetime in CONSTANTS}

    def run(self, request, control):
        arrays = self.constants | dict(zip(self.main.inputs, request.inputs, strict=True))
        for operation in self.main.operations:
            (source,), (target,) = operation.inputs, operation.outputs
            arrays[target] = KERNELS[operation.type](arrays[source]).astype(dtype_of(self.main.operands[target].type))
        for place, index in enumerate(self.main.outputs):
            request.write(place, arrays[index])


class FourierDevice(Device):
    name, version, type, extensions = "fourier", "1", DeviceType.ACCELERATOR, (NAME,)

    def capabilities(self):
        return Capabilities.uniform(0.2)

    def supports(self, model):
        return each_operation(model, lambda _, o: "" if o.type in KERNELS else "only com.example.fourier")

    def prepare(self, model, hints):
        return Transformer(model)


def device():
    return FourierDevice()


def main():
    b = nnhal.Builder("spectrum")
    x = b.input((1, 8), name="signal")
    model = b.finish([x], [b.operation(f"{NAME}.ABSOLUTE", b.operation(f"{NAME}.FFT", x))])
    compiled = nnhal.compile(model, devices=[FourierDevice()])
    print(compiled.placement)
    print(compiled(np.sin(np.arange(8, dtype=np.float32) * np.pi / 2)[None]).round(3))


if __name__ == "__main__":
    main()
