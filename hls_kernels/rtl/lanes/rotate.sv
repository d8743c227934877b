// RoPE of a pair of values, one of the head's lower half and one of its upper half.
module rotate (
    input wire clk,
    input wire signed [31:0] low_value,
    input wire signed [31:0] high_value,
    input wire [4:0] room,
    input wire signed [15:0] cosine,
    input wire signed [15:0] sine,
    output wire signed [31:0] low_out,
    output wire signed [31:0] high_out
);
    wire signed [31:0] low_full, high_full;
    wire signed [15:0] a = low_full[31:16], b = high_full[31:16];
    wire signed [15:0] cosine_2, sine_2, a_3, b_3, sine_3;
    wire signed [47:0] a_cosine, b_cosine, low_sum, high_sum;
    wire unused = |{low_full[15:0], high_full[15:0], low_sum[47:32], high_sum[47:32]};

    shift_left widen_low (.clk(clk), .value(low_value), .by(room), .out(low_full));
    shift_left widen_high (.clk(clk), .value(high_value), .by(room), .out(high_full));
    delay #(.WIDTH(32), .DEPTH(latency::SHIFT)) for_products (
        .clk(clk), .in({cosine, sine}), .out({cosine_2, sine_2}));
    delay #(.WIDTH(48), .DEPTH(1)) for_cascade (
        .clk(clk), .in({a, b, sine_2}), .out({a_3, b_3, sine_3}));

    dsp_product #(.A(16), .B(16)) low_first (
        .clk(clk), .a(a), .b(cosine_2), .addend(48'd0), .result(a_cosine));
    dsp_product #(.A(16), .B(16), .SUBTRACT(1)) low_second (
        .clk(clk), .a(b_3), .b(sine_3), .addend(a_cosine), .result(low_sum));
    dsp_product #(.A(16), .B(16)) high_first (
        .clk(clk), .a(b), .b(cosine_2), .addend(48'd0), .result(b_cosine));
    dsp_product #(.A(16), .B(16)) high_second (
        .clk(clk), .a(a_3), .b(sine_3), .addend(b_cosine), .result(high_sum));
    assign low_out = low_sum[31:0];
    assign high_out = high_sum[31:0];
endmodule
