// The seeds of the reciprocal square root: isqrt(2^37 / (2 i + 1)) for i = 16 to 63, by i - 16.
module root_seed (
    input wire clk,
    input wire [5:0] place,
    output reg [16:0] seed
);
    // Bit by bit; runs when the table is made, not in hardware.
    function [16:0] root(input [37:0] square);
        integer bit_place;
        reg [16:0] tried;
        begin
            root = 17'd0;
            for (bit_place = 16; bit_place >= 0; bit_place = bit_place - 1) begin
                tried = root | (17'd1 << bit_place);
                if (38'(tried) * 38'(tried) <= square) root = tried;
            end
        end
    endfunction

    reg [16:0] table_[0:63];
    integer i;
    initial begin
        for (i = 0; i < 64; i = i + 1) table_[i] = root((38'd1 << 37) / (38'(2 * i) + 38'd33));
    end
    always @(posedge clk) seed <= table_[place];
endmodule
