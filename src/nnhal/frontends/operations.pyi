"""Written by `python docs/generate_stubs.py` from the records in `src/nnhal/ops`; do not edit."""

from collections.abc import Sequence
from typing import Any, Literal

from nnhal.base.codes import Activation, LshProjection, MirrorPad, RecurrentActivation
from nnhal.base.operands import SubgraphFacts
from nnhal.frontends.tensor import Integer, Operand, OutType, Pads, Pair, Real, Scale, Tensor, Truth, ZeroPoint
from nnhal.ops.nms import NmsKernel

class Operations:
    """The operations as methods."""

    def abs(
        self,
        input: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """Absolute value. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def add(
        self,
        input1: Operand,
        input2: Operand,
        activation: Activation | Literal["none", "relu", "relu1", "relu6"] = "none",
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Sum. Since 1.0.

        Shapes:
            input1 of rank 1 to 4
            input2 of rank 1 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def argmax(
        self,
        input: Operand,
        axis: Integer,
        *,
        name: str = "",
    ) -> Tensor:
        """Index of the greatest element along an axis, the first among equals; NaN counts as minus infinity.
        Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def argmin(
        self,
        input: Operand,
        axis: Integer,
        *,
        name: str = "",
    ) -> Tensor:
        """Index of the least element along an axis, the first among equals; NaN counts as infinity. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def average_pool_2d(
        self,
        input: Operand,
        *,
        padding: Pads,
        stride: Pair = 1,
        filter_size: Pair,
        activation: Activation | Literal["none", "relu", "relu1", "relu6"] = "none",
        nchw: Truth = False,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Mean of each window; of stored values if quantised, halves rounded away from a stored 0. Since 1.0.

        Shapes:
            input [batch, height, width, depth], NHWC unless nchw
        Returns:
            output [batch, out_h, out_w, depth], NHWC unless nchw

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def axis_aligned_bbox_transform(
        self,
        roi: Operand,
        bbox_deltas: Operand,
        batch_index: Operand,
        image_info: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Moves and resizes boxes by deltas, for each class, and clips them to their picture. Since 1.2.

        Shapes:
            roi [num_rois, 4]
            bbox_deltas [num_rois, deltas]
            batch_index [num_rois]
            image_info [batches, 2]
        Returns:
            output [num_rois, deltas]

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def batch_matmul(
        self,
        x: Operand,
        y: Operand,
        adj_x: Truth = False,
        adj_y: Truth = False,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Products of the matrices in the last two dimensions. Since feature level 6.

        Shapes:
            x of rank 2 to 4
            y of rank 2 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def batch_to_space_nd(
        self,
        input: Operand,
        blocks: Operand,
        nchw: Truth = False,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Moves the batch to blocks of height and width. Since 1.1.

        Shapes:
            input [batch, height, width, depth], NHWC unless nchw
            blocks [2]
        Returns:
            output [out_n, out_h, out_w, depth], NHWC unless nchw

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def bidirectional_sequence_lstm(
        self,
        input: Operand,
        fw_input_to_input: Operand | None = None,
        *,
        fw_input_to_forget: Operand,
        fw_input_to_cell: Operand,
        fw_input_to_output: Operand,
        fw_state_to_input: Operand | None = None,
        fw_state_to_forget: Operand,
        fw_state_to_cell: Operand,
        fw_state_to_output: Operand,
        fw_peep_input: Operand | None = None,
        fw_peep_forget: Operand | None = None,
        fw_peep_output: Operand | None = None,
        fw_bias_input: Operand | None = None,
        fw_bias_forget: Operand,
        fw_bias_cell: Operand,
        fw_bias_output: Operand,
        fw_projection: Operand | None = None,
        fw_projection_bias: Operand | None = None,
        bw_input_to_input: Operand | None = None,
        bw_input_to_forget: Operand,
        bw_input_to_cell: Operand,
        bw_input_to_output: Operand,
        bw_state_to_input: Operand | None = None,
        bw_state_to_forget: Operand,
        bw_state_to_cell: Operand,
        bw_state_to_output: Operand,
        bw_peep_input: Operand | None = None,
        bw_peep_forget: Operand | None = None,
        bw_peep_output: Operand | None = None,
        bw_bias_input: Operand | None = None,
        bw_bias_forget: Operand,
        bw_bias_cell: Operand,
        bw_bias_output: Operand,
        bw_projection: Operand | None = None,
        bw_projection_bias: Operand | None = None,
        fw_state: Operand,
        fw_cell_state: Operand,
        bw_state: Operand,
        bw_cell_state: Operand,
        aux_input: Operand | None = None,
        fw_aux_to_input: Operand | None = None,
        fw_aux_to_forget: Operand | None = None,
        fw_aux_to_cell: Operand | None = None,
        fw_aux_to_output: Operand | None = None,
        bw_aux_to_input: Operand | None = None,
        bw_aux_to_forget: Operand | None = None,
        bw_aux_to_cell: Operand | None = None,
        bw_aux_to_output: Operand | None = None,
        activation_kind: RecurrentActivation | Literal["none", "relu", "relu1", "relu6", "tanh", "sign_bit", "sigmoid"],
        cell_clip: Real,
        projection_clip: Real,
        merge_outputs: Truth,
        time_major: Truth,
        fw_norm_input: Operand | None = None,
        fw_norm_forget: Operand | None = None,
        fw_norm_cell: Operand | None = None,
        fw_norm_output: Operand | None = None,
        bw_norm_input: Operand | None = None,
        bw_norm_forget: Operand | None = None,
        bw_norm_cell: Operand | None = None,
        bw_norm_output: Operand | None = None,
        outputs: int | None = None,
        name: str = "",
    ) -> Any:
        """Two LSTM cells over a sequence, one forwards and one backwards. Since 1.2.

        Shapes:
            input [_, _, input_size]
            fw_input_to_input [fw_units, input_size]
            fw_input_to_forget [fw_units, input_size]
            fw_input_to_cell [fw_units, input_size]
            fw_input_to_output [fw_units, input_size]
            fw_state_to_input [fw_units, fw_output_size]
            fw_state_to_forget [fw_units, fw_output_size]
            fw_state_to_cell [fw_units, fw_output_size]
            fw_state_to_output [fw_units, fw_output_size]
            fw_peep_input [fw_units]
            fw_peep_forget [fw_units]
            fw_peep_output [fw_units]
            fw_bias_input [fw_units]
            fw_bias_forget [fw_units]
            fw_bias_cell [fw_units]
            fw_bias_output [fw_units]
            fw_projection [fw_output_size, fw_units]
            fw_projection_bias [fw_output_size]
            bw_input_to_input [bw_units, bw_input_size]
            bw_input_to_forget [bw_units, bw_input_size]
            bw_input_to_cell [bw_units, bw_input_size]
            bw_input_to_output [bw_units, bw_input_size]
            bw_state_to_input [bw_units, bw_output_size]
            bw_state_to_forget [bw_units, bw_output_size]
            bw_state_to_cell [bw_units, bw_output_size]
            bw_state_to_output [bw_units, bw_output_size]
            bw_peep_input [bw_units]
            bw_peep_forget [bw_units]
            bw_peep_output [bw_units]
            bw_bias_input [bw_units]
            bw_bias_forget [bw_units]
            bw_bias_cell [bw_units]
            bw_bias_output [bw_units]
            bw_projection [bw_output_size, bw_units]
            bw_projection_bias [bw_output_size]
            fw_state [batch, fw_output_size]
            fw_cell_state [batch, fw_units]
            bw_state [batch, bw_output_size]
            bw_cell_state [batch, bw_units]
            aux_input [_, _, aux_size]
            fw_aux_to_input [fw_units, aux_size]
            fw_aux_to_forget [fw_units, aux_size]
            fw_aux_to_cell [fw_units, aux_size]
            fw_aux_to_output [fw_units, aux_size]
            bw_aux_to_input [bw_units, aux_size]
            bw_aux_to_forget [bw_units, aux_size]
            bw_aux_to_cell [bw_units, aux_size]
            bw_aux_to_output [bw_units, aux_size]
            fw_norm_input [fw_units]
            fw_norm_forget [fw_units]
            fw_norm_cell [fw_units]
            fw_norm_output [fw_units]
            bw_norm_input [bw_units]
            bw_norm_forget [bw_units]
            bw_norm_cell [bw_units]
            bw_norm_output [bw_units]
        Returns:
            fw_output
            bw_output
            fw_state_out
            fw_cell_state_out
            bw_state_out
            bw_cell_state_out

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def bidirectional_sequence_rnn(
        self,
        input: Operand,
        fw_weights: Operand,
        fw_recurrent_weights: Operand,
        fw_bias: Operand,
        fw_hidden_state: Operand,
        bw_weights: Operand,
        bw_recurrent_weights: Operand,
        bw_bias: Operand,
        bw_hidden_state: Operand,
        aux_input: Operand | None = None,
        fw_aux_weights: Operand | None = None,
        bw_aux_weights: Operand | None = None,
        *,
        activation_kind: RecurrentActivation | Literal["none", "relu", "relu1", "relu6", "tanh", "sign_bit", "sigmoid"],
        time_major: Truth,
        merge_outputs: Truth,
        outputs: int | None = None,
        name: str = "",
    ) -> Any:
        """Two recurrent cells over a sequence, one forwards and one backwards. Since 1.2.

        Shapes:
            input [_, _, input_size]
            fw_weights [fw_units, input_size]
            fw_recurrent_weights [fw_units, fw_units]
            fw_bias [fw_units]
            fw_hidden_state [batch, fw_units]
            bw_weights [bw_units, bw_input_size]
            bw_recurrent_weights [bw_units, bw_units]
            bw_bias [bw_units]
            bw_hidden_state [batch, bw_units]
            aux_input [_, _, aux_size]
            fw_aux_weights [fw_units, aux_size]
            bw_aux_weights [bw_units, aux_size]
        Returns:
            fw_output
            bw_output
            fw_hidden_state_out
            bw_hidden_state_out

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def box_with_nms_limit(
        self,
        scores: Operand,
        roi: Operand,
        batch_index: Operand,
        score_threshold: Real,
        max_num_detections: Integer,
        nms_kernel: NmsKernel | Literal["hard", "linear", "gaussian"],
        iou_threshold: Real,
        sigma: Real,
        nms_score_threshold: Real,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        out_type: OutType | None = None,
        name: str = "",
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the best boxes of each picture, of every class but 0, the background, without those that
        overlap better ones. A score must be greater than score_threshold; an overlap of iou_threshold
        counts; a score lowered to nms_score_threshold stays. Since 1.2.

        Shapes:
            scores [num_rois, num_classes]
            roi [num_rois, coordinates]
            batch_index [num_rois]
        Returns:
            scores_out [num_output_rois]
            roi_out [num_output_rois, 4]
            classes [num_output_rois]
            batches [num_output_rois]

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def cast(
        self,
        input: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        out_type: OutType | None = None,
        name: str = "",
    ) -> Tensor:
        """Converts stored values to another type; scales and zero points are ignored. Integers are truncated
        towards 0 and saturated, NaN becomes 0. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def channel_shuffle(
        self,
        input: Operand,
        groups: Integer,
        axis: Integer,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Groups the channels that have the same position in each group. Since 1.2.

        Shapes:
            input of rank 1 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def concatenation(
        self,
        parts: Sequence[Operand] | Tensor,
        axis: Integer,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Concatenates tensors along an axis. Since 1.0.

        Shapes:
            parts of rank 1 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def conv_2d(
        self,
        input: Operand,
        filter: Operand,
        bias: Operand,
        *,
        padding: Pads,
        stride: Pair = 1,
        activation: Activation | Literal["none", "relu", "relu1", "relu6"] = "none",
        nchw: Truth = False,
        dilation: Pair = 1,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Convolution that mixes the channels. Since 1.0.

        Shapes:
            input [batch, height, width, depth_in], NHWC unless nchw
            filter [depth_out, filter_h, filter_w, depth_in]
            bias [depth_out]
        Returns:
            output [batch, out_h, out_w, depth_out], NHWC unless nchw

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def depthwise_conv_2d(
        self,
        input: Operand,
        filter: Operand,
        bias: Operand,
        *,
        padding: Pads,
        stride: Pair = 1,
        depth_multiplier: Integer,
        activation: Activation | Literal["none", "relu", "relu1", "relu6"] = "none",
        nchw: Truth = False,
        dilation: Pair = 1,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Convolution of each channel alone, with one or more filters. Since 1.0.

        Shapes:
            input [batch, height, width, depth_in], NHWC unless nchw
            filter [1, filter_h, filter_w, depth_out]
            bias [depth_out]
        Returns:
            output [batch, out_h, out_w, depth_out], NHWC unless nchw

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def depth_to_space(
        self,
        input: Operand,
        block: Integer,
        nchw: Truth = False,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Moves depth to blocks of height and width. Since 1.0.

        Shapes:
            input [batch, height, width, depth], NHWC unless nchw
        Returns:
            output [batch, out_h, out_w, out_d], NHWC unless nchw

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def dequantize(
        self,
        input: Operand,
        *,
        out_type: OutType | None = None,
        name: str = "",
    ) -> Tensor:
        """Returns the real values of quantised ones. Since 1.0.

        Shapes:
            input of rank 1 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def detection_postprocessing(
        self,
        scores: Operand,
        bbox_deltas: Operand,
        anchors: Operand,
        scale_y: Real,
        scale_x: Real,
        scale_h: Real,
        scale_w: Real,
        use_regular_nms: Truth,
        max_num_detections: Integer,
        max_classes_per_detection: Integer,
        max_detections_per_class: Integer,
        score_threshold: Real,
        iou_threshold: Real,
        is_bg_in_label: Truth,
        *,
        name: str = "",
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the best boxes and their classes, from anchors and deltas for them. A score must be greater
        than score_threshold; an overlap of iou_threshold counts. Since 1.2.

        Shapes:
            scores [batches, num_anchors, num_classes]
            bbox_deltas [batches, num_anchors, length_box_encoding]
            anchors [num_anchors, 4]
        Returns:
            scores_out [batches, rows]
            roi_out [batches, rows, 4]
            classes [batches, rows]
            num_detections [batches]

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def div(
        self,
        input1: Operand,
        input2: Operand,
        activation: Activation | Literal["none", "relu", "relu1", "relu6"] = "none",
        *,
        name: str = "",
    ) -> Tensor:
        """Quotient; of integers, rounded down. Since 1.1.

        Shapes:
            input1 of rank 1 to 4
            input2 of rank 1 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def elu(
        self,
        input: Operand,
        alpha: Real,
        *,
        name: str = "",
    ) -> Tensor:
        """max(0, x) + min(0, alpha * (exp(x) - 1)). Since 1.3.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def embedding_lookup(
        self,
        lookups: Operand,
        values: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Picks rows by index. Since 1.0.

        Shapes:
            lookups [count]
            values of rank 2 to 8
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def equal(
        self,
        input1: Operand,
        input2: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """Whether the elements are equal. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def exp(
        self,
        input: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """e to the power of the element. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def expand_dims(
        self,
        input: Operand,
        axis: Integer,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Inserts a dimension of size 1. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def fill(
        self,
        shape: Operand,
        value: Real | Integer,
        *,
        out_type: OutType | None = None,
        name: str = "",
    ) -> Tensor:
        """Fills a tensor of the given shape with the given value. Since 1.3.

        Shapes:
            shape [_]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def floor(
        self,
        input: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """The greatest integer that is not greater. Since 1.0.

        Shapes:
            input of rank 1 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def fully_connected(
        self,
        input: Operand,
        weights: Operand,
        bias: Operand,
        activation: Activation | Literal["none", "relu", "relu1", "relu6"] = "none",
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Multiplies each row of input_size elements by the transposed weights. Since 1.0.

        Shapes:
            input of rank 2 to 4
            weights [num_units, input_size]
            bias [num_units]
        Returns:
            output [batch_size, num_units]

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def gather(
        self,
        input: Operand,
        axis: Integer,
        indices: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Picks slices by index along an axis. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def generate_proposals(
        self,
        scores: Operand,
        bbox_deltas: Operand,
        anchors: Operand,
        image_info: Operand,
        height_stride: Real,
        width_stride: Real,
        pre_nms_limit: Integer,
        post_nms_limit: Integer,
        iou_threshold: Real,
        min_size: Real,
        nchw: Truth,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        out_type: OutType | None = None,
        name: str = "",
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the best boxes, from anchors at every position of a feature map and deltas for them. Height
        and width must be greater than the unscaled min_size, and the centre left of and above the picture's
        edge; an overlap of iou_threshold counts. Since 1.2.

        Shapes:
            scores [batches, height, width, num_anchors], NHWC unless nchw
            bbox_deltas [batches, height, width, deltas], NHWC unless nchw
            anchors [num_anchors, 4]
            image_info [batches, 2]
        Returns:
            scores_out [num_output_rois]
            roi_out [num_output_rois, 4]
            batches_out [num_output_rois]

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def greater(
        self,
        input1: Operand,
        input2: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """Whether the first element is greater. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def greater_equal(
        self,
        input1: Operand,
        input2: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """Whether the first element is not less. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def grouped_conv_2d(
        self,
        input: Operand,
        filter: Operand,
        bias: Operand,
        *,
        padding: Pads,
        stride: Pair = 1,
        groups: Integer,
        activation: Activation | Literal["none", "relu", "relu1", "relu6"] = "none",
        nchw: Truth,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Convolution of groups of channels, each with its own filters. Since 1.2.

        Shapes:
            input [batch, height, width, depth_in], NHWC unless nchw
            filter [depth_out, filter_h, filter_w, depth_group]
            bias [depth_out]
        Returns:
            output [batch, out_h, out_w, depth_out], NHWC unless nchw

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def hard_swish(
        self,
        input: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """x * max(0, min(6, x + 3)) / 6. Since 1.3.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def hashtable_lookup(
        self,
        lookups: Operand,
        keys: Operand,
        values: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> tuple[Tensor, Tensor]:
        """Picks rows by key; a missing key gives stored zeros and no hit. Since 1.0.

        Shapes:
            lookups [count]
            keys [keys_]
            values of rank 2 to 8
        Returns:
            output
            hits

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def heatmap_max_keypoint(
        self,
        heatmap: Operand,
        boxes: Operand,
        nchw: Truth,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        out_type: OutType | None = None,
        name: str = "",
    ) -> tuple[Tensor, Tensor]:
        """The position of the maximum of each heatmap, in the original image, and its score. If the greatest
        element occurs twice, or squares of elements exceed float32, both results are up to the driver.
        Since 1.2.

        Shapes:
            heatmap [num_boxes, heatmap_size, heatmap_size, num_keypoints], NHWC unless nchw
            boxes [num_boxes, 4]
        Returns:
            scores [num_boxes, num_keypoints]
            keypoints [num_boxes, num_keypoints, 2]

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def if_(
        self,
        condition: Operand,
        then_model: SubgraphFacts,
        else_model: SubgraphFacts,
        operands: Sequence[Operand] | Tensor | None = None,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        out_type: OutType | None = None,
        outputs: int | None = None,
        name: str = "",
    ) -> Any:
        """Runs one of two subgraphs. Since 1.3.

        Shapes:
            condition [1]
        Returns:
            results

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def instance_normalization(
        self,
        input: Operand,
        gamma: Real,
        beta: Real,
        epsilon: Real,
        nchw: Truth,
        *,
        name: str = "",
    ) -> Tensor:
        """(x - mean) * gamma / sqrt(variance + epsilon) + beta, over height and width. Since 1.2.

        Shapes:
            input [batch, height, width, depth], NHWC unless nchw
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def l2_normalization(
        self,
        input: Operand,
        axis: Integer = -1,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """The element, divided by the length of the vector along an axis. Since 1.0.

        Shapes:
            input of rank 1 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def l2_pool_2d(
        self,
        input: Operand,
        *,
        padding: Pads,
        stride: Pair = 1,
        filter_size: Pair,
        activation: Activation | Literal["none", "relu", "relu1", "relu6"] = "none",
        nchw: Truth = False,
        name: str = "",
    ) -> Tensor:
        """Root of the mean of squares of each window. Since 1.0.

        Shapes:
            input [batch, height, width, depth], NHWC unless nchw
        Returns:
            output [batch, out_h, out_w, depth], NHWC unless nchw

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def less(
        self,
        input1: Operand,
        input2: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """Whether the first element is less. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def less_equal(
        self,
        input1: Operand,
        input2: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """Whether the first element is not greater. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def local_response_normalization(
        self,
        input: Operand,
        radius: Integer,
        bias: Real,
        alpha: Real,
        beta: Real,
        axis: Integer = -1,
        *,
        name: str = "",
    ) -> Tensor:
        """x / (bias + alpha * s) ** beta, where s sums the squares up to radius away along an axis. Since 1.0.

        Shapes:
            input of rank 1 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def log(
        self,
        input: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """Natural logarithm. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def logical_and(
        self,
        input1: Operand,
        input2: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """Whether both are true. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def logical_not(
        self,
        input: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """Whether it is false. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def logical_or(
        self,
        input1: Operand,
        input2: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """Whether at least one is true. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def logistic(
        self,
        input: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Sigmoid: 1 / (1 + exp(-x)). Since 1.0.

        Shapes:
            input of rank 1 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def log_softmax(
        self,
        input: Operand,
        beta: Real,
        axis: Integer,
        *,
        name: str = "",
    ) -> Tensor:
        """Logarithm of the softmax. Since 1.2.

        Shapes:
            input of rank 1 to 8
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def lsh_projection(
        self,
        hashes: Operand,
        input: Operand,
        weight: Operand | None = None,
        *,
        kind: LshProjection | Literal["sparse_deprecated", "dense", "sparse"],
        name: str = "",
    ) -> Tensor:
        """Computes bits by locality-sensitive hashing. Since 1.0.

        Shapes:
            hashes [functions, bits]
            weight [weights]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def lstm(
        self,
        input: Operand,
        input_to_input: Operand | None = None,
        *,
        input_to_forget: Operand,
        input_to_cell: Operand,
        input_to_output: Operand,
        state_to_input: Operand | None = None,
        state_to_forget: Operand,
        state_to_cell: Operand,
        state_to_output: Operand,
        peep_input: Operand | None = None,
        peep_forget: Operand | None = None,
        peep_output: Operand | None = None,
        bias_input: Operand | None = None,
        bias_forget: Operand,
        bias_cell: Operand,
        bias_output: Operand,
        projection: Operand | None = None,
        projection_bias: Operand | None = None,
        state: Operand,
        cell_state: Operand,
        activation_kind: RecurrentActivation | Literal["none", "relu", "relu1", "relu6", "tanh", "sign_bit", "sigmoid"],
        cell_clip: Real,
        projection_clip: Real,
        norm_input: Operand = ...,
        norm_forget: Operand = ...,
        norm_cell: Operand = ...,
        norm_output: Operand = ...,
        name: str = "",
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One time step of an LSTM cell. Since 1.0.

        Shapes:
            input [batch, input_size]
            input_to_input [units, input_size]
            input_to_forget [units, input_size]
            input_to_cell [units, input_size]
            input_to_output [units, input_size]
            state_to_input [units, output_size]
            state_to_forget [units, output_size]
            state_to_cell [units, output_size]
            state_to_output [units, output_size]
            peep_input [units]
            peep_forget [units]
            peep_output [units]
            bias_input [units]
            bias_forget [units]
            bias_cell [units]
            bias_output [units]
            projection [output_size, units]
            projection_bias [output_size]
            state [batch, output_size]
            cell_state [batch, units]
            norm_input [units]
            norm_forget [units]
            norm_cell [units]
            norm_output [units]
        Returns:
            scratch [batch, scratch_size]
            state_out [batch, output_size]
            cell_state_out [batch, units]
            output [batch, output_size]

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def maximum(
        self,
        input1: Operand,
        input2: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """The greater element; NaN if either is NaN. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def max_pool_2d(
        self,
        input: Operand,
        *,
        padding: Pads,
        stride: Pair = 1,
        filter_size: Pair,
        activation: Activation | Literal["none", "relu", "relu1", "relu6"] = "none",
        nchw: Truth = False,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Greatest element of each window. Since 1.0.

        Shapes:
            input [batch, height, width, depth], NHWC unless nchw
        Returns:
            output [batch, out_h, out_w, depth], NHWC unless nchw

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def mean(
        self,
        input: Operand,
        axes: Operand,
        keep_dims: Integer,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """The mean of the elements. Since 1.1.

        Shapes:
            input of rank 1 to 4
            axes [axis_count]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def minimum(
        self,
        input1: Operand,
        input2: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """The lesser element; NaN if either is NaN. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def mirror_pad(
        self,
        input: Operand,
        paddings: Operand,
        mode: MirrorPad | Literal["reflect", "symmetric"],
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Pads a tensor with its mirror image. Since feature level 7.

        Shapes:
            paddings [_, 2]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def mul(
        self,
        input1: Operand,
        input2: Operand,
        activation: Activation | Literal["none", "relu", "relu1", "relu6"] = "none",
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Product. Since 1.0.

        Shapes:
            input1 of rank 1 to 4
            input2 of rank 1 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def neg(
        self,
        input: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """Negative value. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def not_equal(
        self,
        input1: Operand,
        input2: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """Whether the elements differ. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def pack(
        self,
        axis: Integer,
        parts: Sequence[Operand] | Tensor,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Stacks tensors of one shape along a new axis. Since feature level 6.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def pad(
        self,
        input: Operand,
        paddings: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Pads a tensor with zeros. Since 1.1.

        Shapes:
            input of rank 1 to 4
            paddings [_, 2]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def pad_v2(
        self,
        input: Operand,
        paddings: Operand,
        value: Real,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Pads a tensor with a value. Since 1.2.

        Shapes:
            input of rank 1 to 4
            paddings [_, 2]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def pow(
        self,
        base: Operand,
        exponent: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """The first tensor to the power of the second. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def prelu(
        self,
        input: Operand,
        alpha: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Multiplies elements below 0 by alpha; others are unchanged. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def quantize(
        self,
        input: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        out_type: OutType | None = None,
        name: str = "",
    ) -> Tensor:
        """Quantises real values, rounded and saturated, infinite ones too; NaN becomes 0. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def quantized_16bit_lstm(
        self,
        input: Operand,
        input_to_input: Operand,
        input_to_forget: Operand,
        input_to_cell: Operand,
        input_to_output: Operand,
        state_to_input: Operand,
        state_to_forget: Operand,
        state_to_cell: Operand,
        state_to_output: Operand,
        bias_input: Operand,
        bias_forget: Operand,
        bias_cell: Operand,
        bias_output: Operand,
        cell_state: Operand,
        state: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> tuple[Tensor, Tensor]:
        """One time step of an LSTM cell on 8-bit tensors. Since 1.2.

        Shapes:
            input [batch, input_size]
            input_to_input [output_size, input_size]
            input_to_forget [output_size, input_size]
            input_to_cell [output_size, input_size]
            input_to_output [output_size, input_size]
            state_to_input [output_size, output_size]
            state_to_forget [output_size, output_size]
            state_to_cell [output_size, output_size]
            state_to_output [output_size, output_size]
            bias_input [output_size]
            bias_forget [output_size]
            bias_cell [output_size]
            bias_output [output_size]
            cell_state [batch, output_size]
            state [batch, output_size]
        Returns:
            cell_state_out [batch, output_size]
            output [batch, output_size]

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def quantized_lstm(
        self,
        input: Operand,
        input_to_input: Operand | None = None,
        *,
        input_to_forget: Operand,
        input_to_cell: Operand,
        input_to_output: Operand,
        state_to_input: Operand | None = None,
        state_to_forget: Operand,
        state_to_cell: Operand,
        state_to_output: Operand,
        peep_input: Operand | None = None,
        peep_forget: Operand | None = None,
        peep_output: Operand | None = None,
        bias_input: Operand | None = None,
        bias_forget: Operand,
        bias_cell: Operand,
        bias_output: Operand,
        projection: Operand | None = None,
        projection_bias: Operand | None = None,
        state: Operand,
        cell_state: Operand,
        norm_input: Operand | None = None,
        norm_forget: Operand | None = None,
        norm_cell: Operand | None = None,
        norm_output: Operand | None = None,
        cell_clip: Real | None = None,
        projection_clip: Real | None = None,
        input_intermediate_scale: Real,
        forget_intermediate_scale: Real,
        cell_intermediate_scale: Real,
        output_intermediate_scale: Real,
        hidden_state_zero_point: Integer,
        hidden_state_scale: Real,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One time step of an LSTM cell on 8-bit tensors, with optional parts like LSTM. Since 1.3.

        Shapes:
            input [batch, input_size]
            input_to_input [units, input_size]
            input_to_forget [units, input_size]
            input_to_cell [units, input_size]
            input_to_output [units, input_size]
            state_to_input [units, output_size]
            state_to_forget [units, output_size]
            state_to_cell [units, output_size]
            state_to_output [units, output_size]
            peep_input [units]
            peep_forget [units]
            peep_output [units]
            bias_input [units]
            bias_forget [units]
            bias_cell [units]
            bias_output [units]
            projection [output_size, units]
            projection_bias [output_size]
            state [batch, output_size]
            cell_state [batch, units]
            norm_input [units]
            norm_forget [units]
            norm_cell [units]
            norm_output [units]
        Returns:
            state_out [batch, output_size]
            cell_state_out [batch, units]
            output [batch, output_size]

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def random_multinomial(
        self,
        input: Operand,
        sample_count: Integer,
        seeds: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """Draws samples of each row's classes. Since 1.2.

        Shapes:
            input [batch, classes]
            seeds [2]
        Returns:
            output [batch, samples]

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def rank(
        self,
        input: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """The number of dimensions. Since 1.3.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def reduce_all(
        self,
        input: Operand,
        axes: Operand,
        keep_dims: Truth,
        *,
        name: str = "",
    ) -> Tensor:
        """Whether all elements are true. Since 1.2.

        Shapes:
            input of rank 1 to 4
            axes [axis_count]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def reduce_any(
        self,
        input: Operand,
        axes: Operand,
        keep_dims: Truth,
        *,
        name: str = "",
    ) -> Tensor:
        """Whether any element is true. Since 1.2.

        Shapes:
            input of rank 1 to 4
            axes [axis_count]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def reduce_max(
        self,
        input: Operand,
        axes: Operand,
        keep_dims: Truth,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """The greatest element; NaN if there is one. Since 1.2.

        Shapes:
            input of rank 1 to 4
            axes [axis_count]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def reduce_min(
        self,
        input: Operand,
        axes: Operand,
        keep_dims: Truth,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """The least element; NaN if there is one. Since 1.2.

        Shapes:
            input of rank 1 to 4
            axes [axis_count]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def reduce_prod(
        self,
        input: Operand,
        axes: Operand,
        keep_dims: Truth,
        *,
        name: str = "",
    ) -> Tensor:
        """The product of the elements. NaN among them, or 0 among infinite ones, makes it NaN. Since 1.2.

        Shapes:
            input of rank 1 to 4
            axes [axis_count]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def reduce_sum(
        self,
        input: Operand,
        axes: Operand,
        keep_dims: Truth,
        *,
        name: str = "",
    ) -> Tensor:
        """The sum of the elements. Since 1.2.

        Shapes:
            input of rank 1 to 4
            axes [axis_count]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def relu(
        self,
        input: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """The element, at least 0. Since 1.0.

        Shapes:
            input of rank 1 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def relu1(
        self,
        input: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """The element, at least -1 and at most 1. Since 1.0.

        Shapes:
            input of rank 1 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def relu6(
        self,
        input: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """The element, at least 0 and at most 6. Since 1.0.

        Shapes:
            input of rank 1 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def reshape(
        self,
        input: Operand,
        shape: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Returns the same elements in another shape. Since 1.0.

        Shapes:
            shape [_]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def resize_bilinear(
        self,
        input: Operand,
        *,
        out_w: Integer = ...,
        out_h: Integer = ...,
        scale_w: Real = ...,
        scale_h: Real = ...,
        nchw: Truth = False,
        align_corners: Truth = False,
        half_pixel_centers: Truth = False,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Resizes pictures; each element is interpolated between four. Since 1.0.

        Shapes:
            input [batch, height, width, depth], NHWC unless nchw
        Returns:
            output [batch, new_h, new_w, depth], NHWC unless nchw

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def resize_nearest_neighbor(
        self,
        input: Operand,
        *,
        out_w: Integer = ...,
        out_h: Integer = ...,
        scale_w: Real = ...,
        scale_h: Real = ...,
        nchw: Truth,
        align_corners: Truth = False,
        half_pixel_centers: Truth = False,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Resizes pictures; each element is the nearest one. Since 1.2.

        Shapes:
            input [batch, height, width, depth], NHWC unless nchw
        Returns:
            output [batch, new_h, new_w, depth], NHWC unless nchw

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def reverse(
        self,
        input: Operand,
        axis: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Reverses the order along an axis. Since feature level 7.

        Shapes:
            input of rank 1 to 8
            axis [1]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def rnn(
        self,
        input: Operand,
        weights: Operand,
        recurrent_weights: Operand,
        bias: Operand,
        hidden_state: Operand,
        activation_kind: RecurrentActivation | Literal["none", "relu", "relu1", "relu6", "tanh", "sign_bit", "sigmoid"],
        *,
        name: str = "",
    ) -> tuple[Tensor, Tensor]:
        """One time step of a recurrent cell. Since 1.0.

        Shapes:
            input [batch, input_size]
            weights [units, input_size]
            recurrent_weights [units, units]
            bias [units]
            hidden_state [batch, units]
        Returns:
            hidden_state_out [batch, units]
            output [batch, units]

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def roi_align(
        self,
        input: Operand,
        roi: Operand,
        batch_index: Operand,
        out_height: Integer,
        out_width: Integer,
        height_stride: Real,
        width_stride: Real,
        height_samples: Integer,
        width_samples: Integer,
        nchw: Truth,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Scales regions of interest to one size, by means of interpolated points. Since 1.2.

        Shapes:
            input [batches, height, width, depth], NHWC unless nchw
            roi [num_rois, 4]
            batch_index [num_rois]
        Returns:
            output [num_rois, out_height, out_width, depth], NHWC unless nchw

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def roi_pooling(
        self,
        input: Operand,
        roi: Operand,
        batch_index: Operand,
        out_height: Integer,
        out_width: Integer,
        height_stride: Real,
        width_stride: Real,
        nchw: Truth,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Scales regions of interest to one size, by the greatest elements. Since 1.2.

        Shapes:
            input [batches, height, width, depth], NHWC unless nchw
            roi [num_rois, 4]
            batch_index [num_rois]
        Returns:
            output [num_rois, out_height, out_width, depth], NHWC unless nchw

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def rsqrt(
        self,
        input: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Reciprocal of the square root. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def select(
        self,
        condition: Operand,
        input1: Operand,
        input2: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """The element of the first tensor if the condition is true, else of the second. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def sin(
        self,
        input: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """Sine of an angle in radians. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def slice(
        self,
        input: Operand,
        begin: Operand,
        size: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Picks a block of a tensor. Since 1.2.

        Shapes:
            begin [_]
            size [_]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def softmax(
        self,
        input: Operand,
        beta: Real,
        axis: Integer = -1,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """exp(beta * x), divided by the sum of these along an axis. Since 1.0.

        Shapes:
            input of rank 1 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def space_to_batch_nd(
        self,
        input: Operand,
        blocks: Operand,
        paddings: Operand,
        nchw: Truth = False,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Moves blocks of height and width to the batch. Since 1.1.

        Shapes:
            input [batch, height, width, depth], NHWC unless nchw
            blocks [2]
            paddings [2, 2]
        Returns:
            output [out_n, out_h, out_w, depth], NHWC unless nchw

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def space_to_depth(
        self,
        input: Operand,
        block: Integer,
        nchw: Truth = False,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Moves blocks of height and width to depth. Since 1.0.

        Shapes:
            input [batch, height, width, depth], NHWC unless nchw
        Returns:
            output [batch, out_h, out_w, out_d], NHWC unless nchw

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def split(
        self,
        input: Operand,
        axis: Integer,
        pieces: Integer,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        outputs: int | None = None,
        name: str = "",
    ) -> Any:
        """Splits a tensor into equal pieces along an axis. Since 1.2.

        Returns:
            parts

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def sqrt(
        self,
        input: Operand,
        *,
        name: str = "",
    ) -> Tensor:
        """Square root. Since 1.2.

        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def squeeze(
        self,
        input: Operand,
        axes: Operand | None = None,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Removes dimensions of size 1. Since 1.1.

        Shapes:
            input of rank 1 to 4
            axes [_]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def strided_slice(
        self,
        input: Operand,
        begin: Operand,
        end: Operand,
        strides: Operand,
        begin_mask: Integer,
        end_mask: Integer,
        shrink_mask: Integer,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Picks a block of a tensor with strides; bits of the masks select ignored begins and ends, and
        removed axes. Since 1.1.

        Shapes:
            input of rank 1 to 4
            begin [_]
            end [_]
            strides [_]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def sub(
        self,
        input1: Operand,
        input2: Operand,
        activation: Activation | Literal["none", "relu", "relu1", "relu6"] = "none",
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Difference. Since 1.1.

        Shapes:
            input1 of rank 1 to 4
            input2 of rank 1 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def svdf(
        self,
        input: Operand,
        weights_feature: Operand,
        weights_time: Operand,
        bias: Operand | None = None,
        *,
        state: Operand,
        rank: Integer,
        activation_kind: RecurrentActivation | Literal["none", "relu", "relu1", "relu6", "tanh", "sign_bit", "sigmoid"],
        name: str = "",
    ) -> tuple[Tensor, Tensor]:
        """Filters features, pushes the result into a memory and filters that over time. Since 1.0.

        Shapes:
            input [batch, input_size]
            weights_feature [filters, input_size]
            weights_time [filters, memory_size]
            bias [units]
            state [batch, state_size]
        Returns:
            state_out [batch, state_size]
            output [batch, units]

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def tanh(
        self,
        input: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Hyperbolic tangent. Since 1.0.

        Shapes:
            input of rank 1 to 4
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def tile(
        self,
        input: Operand,
        multiples: Operand,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Repeats a tensor along its axes. Since 1.2.

        Shapes:
            multiples [_]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def topk_v2(
        self,
        input: Operand,
        k: Integer,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> tuple[Tensor, Tensor]:
        """Returns the k greatest elements along the last axis, and their indices; of equal ones the last is
        first, and NaN counts as minus infinity. Since 1.2.

        Returns:
            values
            indices

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def transpose(
        self,
        input: Operand,
        permutation: Operand | None = None,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """Permutes the dimensions. Since 1.1.

        Shapes:
            input of rank 1 to 4
            permutation [_]
        Returns:
            output

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def transpose_conv_2d(
        self,
        input: Operand,
        filter: Operand,
        bias: Operand,
        *,
        padding: Pads,
        output_shape: Operand = ...,
        stride: Pair = 1,
        activation: Activation | Literal["none", "relu", "relu1", "relu6"] = "none",
        nchw: Truth,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        name: str = "",
    ) -> Tensor:
        """The transpose of CONV_2D: its output has the shape of CONV_2D's input. Since 1.2.

        Shapes:
            input [batch, height, width, depth_in], NHWC unless nchw
            filter [depth_out, filter_h, filter_w, depth_in]
            bias [depth_out]
            output_shape [4]
        Returns:
            output [batch, out_h, out_w, depth_out], NHWC unless nchw

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def unidirectional_sequence_lstm(
        self,
        input: Operand,
        input_to_input: Operand | None = None,
        *,
        input_to_forget: Operand,
        input_to_cell: Operand,
        input_to_output: Operand,
        state_to_input: Operand | None = None,
        state_to_forget: Operand,
        state_to_cell: Operand,
        state_to_output: Operand,
        peep_input: Operand | None = None,
        peep_forget: Operand | None = None,
        peep_output: Operand | None = None,
        bias_input: Operand | None = None,
        bias_forget: Operand,
        bias_cell: Operand,
        bias_output: Operand,
        projection: Operand | None = None,
        projection_bias: Operand | None = None,
        state: Operand,
        cell_state: Operand,
        activation_kind: RecurrentActivation | Literal["none", "relu", "relu1", "relu6", "tanh", "sign_bit", "sigmoid"],
        cell_clip: Real,
        projection_clip: Real,
        time_major: Truth,
        norm_input: Operand | None = None,
        norm_forget: Operand | None = None,
        norm_cell: Operand | None = None,
        norm_output: Operand | None = None,
        outputs: int | None = None,
        name: str = "",
    ) -> Any:
        """An LSTM over a sequence, forwards. Since 1.2.

        Shapes:
            input [_, _, input_size]
            input_to_input [units, input_size]
            input_to_forget [units, input_size]
            input_to_cell [units, input_size]
            input_to_output [units, input_size]
            state_to_input [units, output_size]
            state_to_forget [units, output_size]
            state_to_cell [units, output_size]
            state_to_output [units, output_size]
            peep_input [units]
            peep_forget [units]
            peep_output [units]
            bias_input [units]
            bias_forget [units]
            bias_cell [units]
            bias_output [units]
            projection [output_size, units]
            projection_bias [output_size]
            state [batch, output_size]
            cell_state [batch, units]
            norm_input [units]
            norm_forget [units]
            norm_cell [units]
            norm_output [units]
        Returns:
            output
            state_out [batch, output_size]
            cell_state_out [batch, units]

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def unidirectional_sequence_rnn(
        self,
        input: Operand,
        weights: Operand,
        recurrent_weights: Operand,
        bias: Operand,
        hidden_state: Operand,
        activation_kind: RecurrentActivation | Literal["none", "relu", "relu1", "relu6", "tanh", "sign_bit", "sigmoid"],
        time_major: Integer,
        *,
        outputs: int | None = None,
        name: str = "",
    ) -> Any:
        """A recurrent cell over a sequence, forwards. Since 1.2.

        Shapes:
            input [_, _, input_size]
            weights [units, input_size]
            recurrent_weights [units, units]
            bias [units]
            hidden_state [batch, units]
        Returns:
            output
            hidden_state_out

        Raises:
            InvalidModel: An argument breaks its rule.
        """
    def while_(
        self,
        condition_model: SubgraphFacts,
        body_model: SubgraphFacts,
        operands: Sequence[Operand] | Tensor | None = None,
        *,
        scale: Scale | None = None,
        zero_point: ZeroPoint | None = None,
        out_type: OutType | None = None,
        outputs: int | None = None,
        name: str = "",
    ) -> Any:
        """Runs the body as long as the condition holds, on values that the body changes in each iteration.
        Since 1.3.

        Returns:
            results

        Raises:
            InvalidModel: An argument breaks its rule.
        """
