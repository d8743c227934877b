// RoPE of one value beside its partner in the head's other half, whose sine is negative for a value
// of the lower half.
module rotate (
    input wire clk,
    input wire signed [31:0] own,
    input wire signed [31:0] partner,
    input wire [4:0] room,
    input wire signed [15:0] cosine,
    input wire signed [15:0] sine,
    output wire signed [31:0] out
);
    wire signed [31:0] own_full, partner_full;
    wire signed [15:0] cosine_2, sine_2, partner_3, sine_3;
    wire signed [47:0] own_cosine, sum;
    wire unused = |{own_full[15:0], partner_full[15:0], sum[47:32]};

    shift_left widen_own (.clk(clk), .value(own), .by(room), .out(own_full));
    shift_left widen_partner (.clk(clk), .value(partner), .by(room), .out(partner_full));
    delay #(.WIDTH(32), .DEPTH(latency::SHIFT)) for_products (
        .clk(clk), .in({cosine, sine}), .out({cosine_2, sine_2}));
    delay #(.WIDTH(32), .DEPTH(1)) for_cascade (
        .clk(clk), .in({partner_full[31:16], sine_2}), .out({partner_3, sine_3}));

    dsp_product #(.A(16), .B(16)) first (
        .clk(clk), .a(own_full[31:16]), .b(cosine_2), .addend(48'd0), .result(own_cosine));
    dsp_product #(.A(16), .B(16)) second (
        .clk(clk), .a(partner_3), .b(sine_3), .addend(own_cosine), .result(sum));
    assign out = sum[31:0];
endmodule
