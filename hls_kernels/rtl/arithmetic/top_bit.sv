// floor(log2 value) for value > 0, by halvings: whether anything stands in the upper half decides
// a bit of the place and which half goes on. Two cycles up to 32 bits, else three.
module top_bit #(
    parameter WIDTH = 64
) (
    input wire clk,
    input wire [WIDTH-1:0] value,
    output reg [5:0] place
);
    wire [63:0] wide = 64'(value);
    wire [31:0] upper = wide[63:32], lower = wide[31:0];
    wire [31:0] half_32;
    wire in_32;

    generate
        if (WIDTH > 32) begin : first
            reg [31:0] half_q;
            reg in_q;
            always @(posedge clk) begin
                half_q <= upper != 0 ? upper : lower;
                in_q <= upper != 0;
            end
            assign half_32 = half_q;
            assign in_32 = in_q;
        end else begin : none
            wire unused = |upper;
            assign half_32 = lower;
            assign in_32 = 1'b0;
        end
    endgenerate

    wire in_16 = half_32[31:16] != 0;
    wire [15:0] half_16 = in_16 ? half_32[31:16] : half_32[15:0];
    wire in_8 = half_16[15:8] != 0;
    reg [7:0] half_8;
    reg [2:0] high_places;

    wire in_4 = half_8[7:4] != 0;
    wire [3:1] half_4 = in_4 ? half_8[7:5] : half_8[3:1];
    wire in_2 = half_4[3:2] != 0;
    wire in_1 = in_2 ? half_4[3] : half_4[1];
    wire unused_bit = half_8[0];

    always @(posedge clk) begin
        half_8 <= in_8 ? half_16[15:8] : half_16[7:0];
        high_places <= {in_32, in_16, in_8};
        place <= {high_places, in_4, in_2, in_1};
    end
endmodule
