// value * 2^exponent as a scale; zero for a value of 0 or below.
module normalise #(
    parameter WIDTH = 64
) (
    input wire clk,
    input wire signed [WIDTH-1:0] value,
    input wire signed [31:0] exponent,
    output wire [31:0] out_mantissa,
    output reg signed [31:0] out_exponent
);
    localparam AT_SHIFT = latency::NORMALISE - latency::SHIFT;

    wire [WIDTH-1:0] kept, full;
    wire [31:0] low_exponent_3;
    wire [5:0] place;
    reg [5:0] room;
    reg positive_1, positive_4, positive_5;
    wire positive_3;
    reg signed [31:0] low_exponent, sum_4, sum_5;
    wire unused = |full[WIDTH-33:0];

    // Left until the highest bit stands just below the sign; the mantissa is the upper 32 bits.
    top_bit #(.WIDTH(WIDTH)) top (.clk(clk), .value(value), .place(place));
    delay #(.WIDTH(WIDTH), .DEPTH(AT_SHIFT)) for_shift (.clk(clk), .in(value), .out(kept));
    shift_left #(.WIDTH(WIDTH), .BITS(6)) widen (
        .clk(clk), .value(positive_4 ? kept : {WIDTH{1'b0}}), .by(room), .out(full));
    assign out_mantissa = full[WIDTH-1-:32];

    delay #(.WIDTH(33), .DEPTH(2)) for_sum (
        .clk(clk), .in({positive_1, low_exponent}), .out({positive_3, low_exponent_3}));
    always @(posedge clk) begin
        positive_1 <= value > 0;
        low_exponent <= exponent - 32'sd30;
        room <= 6'(WIDTH - 2) - place;
        positive_4 <= positive_3;
        sum_4 <= low_exponent_3 + 32'(place);
        positive_5 <= positive_4;
        sum_5 <= sum_4;
        out_exponent <= positive_5 ? sum_5 : 32'sd0;
    end
endmodule
